"""Secrets of many kinds to plant, each random by a fixed seed: none stands in this file as it is."""

from __future__ import annotations

import base64
import random
import string
from collections.abc import Mapping

_RANDOM = random.Random(20)
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def _of(alphabet: str, count: int) -> str:
    return "".join(_RANDOM.choice(alphabet) for _ in range(count))


def _base64(count: int) -> str:
    return base64.b64encode(_RANDOM.randbytes(count)).decode()


def _key() -> str:
    """A private key in PEM; only its form is that of a key."""
    body = _base64(400)
    lines = [body[at : at + 64] for at in range(0, len(body), 64)]
    return "\n".join(["-----BEGIN RSA " + "PRIVATE KEY-----", *lines, "-----END RSA " + "PRIVATE KEY-----"])


BY_FORM: Mapping[str, str] = {
    "Hugging Face": "hf_" + _of(string.ascii_letters, 34),
    "W&B": "wandb_v1_" + _of(ALNUM, 77),
    "AWS access id": "AKIA" + _of(string.ascii_uppercase + "234567", 16),
    "AWS temporary access id": "ASIA" + _of(string.ascii_uppercase + "234567", 16),
    "AWS secret key": _base64(30),
    "OpenAI": "sk-" + _of(ALNUM, 48),
    "OpenAI project": "sk-proj-" + _of(ALNUM + "_-", 120),
    "Anthropic": "sk-ant-api03-" + _of(ALNUM + "_-", 93) + "AA",
    "GitHub": "ghp_" + _of(ALNUM, 36),
    "GitHub fine-grained": "github_pat_" + _of(ALNUM, 22) + "_" + _of(ALNUM, 59),
    "GitLab": "glpat-" + _of(ALNUM, 20),
    "Slack bot": "xoxb-" + _of(string.digits, 12) + "-" + _of(string.digits, 12) + "-" + _of(ALNUM, 24),
    "Slack app": "xapp-1-A" + _of(string.digits, 10) + "-" + _of(string.digits, 13) + "-" + _of(HEX, 64),
    "Google API": "AIza" + _of(ALNUM + "_-", 35),
    "Google OAuth": "ya29." + _of(ALNUM + "_-", 100),
    "Azure storage": _base64(64),
    "Azure event hub": _base64(32),
    "npm": "npm_" + _of(ALNUM, 36),
    "PyPI": "pypi-AgEIcHlwaS5vcmc" + _of(ALNUM + "_-", 120),
    "JWT": "eyJhbGciOiJIUzI1NiJ9.eyJ" + _of(ALNUM, 60) + "." + _of(ALNUM + "_-", 43),
    "Stripe": "sk_live_" + _of(ALNUM, 24),
    "SendGrid": "SG." + _of(ALNUM, 22) + "." + _of(ALNUM + "_-", 43),
    "Databricks": "dapi" + _of(HEX, 32),
    "NGC": "nvapi-" + _of(ALNUM + "_-", 64),
    "Docker": "dckr_pat_" + _of(ALNUM + "_-", 27),
    "Hugging Face organisation": "api_org_" + _of(string.ascii_letters, 34),
    "GitHub app": "ghs_" + _of(ALNUM, 36),
    "GitLab runner": "glrt-" + _of(ALNUM, 20),
    "Google client": "GOCSPX-" + _of(ALNUM + "_-", 28),
    "Google refresh": "1//0" + _of(ALNUM + "_-", 60),
    "Stripe webhook": "whsec_" + _of(ALNUM, 32),
    "Vault": "hvs." + _of(ALNUM + "_-", 90),
    "Groq": "gsk_" + _of(ALNUM, 52),
    "xAI": "xai-" + _of(ALNUM, 80),
    "Perplexity": "pplx-" + _of(ALNUM, 48),
    "Replicate": "r8_" + _of(ALNUM, 37),
    "DigitalOcean": "dop_v1_" + _of(HEX, 64),
    "Shopify": "shpat_" + _of(HEX, 32),
    "Linear": "lin_api_" + _of(ALNUM, 40),
    "Atlassian": "ATATT3" + _of(ALNUM + "_-", 180) + "=" + _of(HEX.upper(), 8),
    "Tailscale": "tskey-auth-" + _of(ALNUM, 17) + "-" + _of(ALNUM, 32),
    "age": "AGE-SECRET-KEY-1" + _of(string.ascii_uppercase + string.digits, 58),
}
"""Values that show by their form what they are, wherever they stand."""


def _named() -> dict[str, tuple[str, str]]:
    def kind(text: str, secret: str) -> tuple[str, str]:
        return text.replace("{}", secret), secret

    hexadecimal, plain, odd = _of(HEX, 40), "correct-horse" + _of(ALNUM, 6), "p@ss/w:" + _of(ALNUM, 8)
    return {
        "W&B by name": kind("WANDB_API_KEY={}", hexadecimal),
        "W&B by option": kind("--wandb.key={}", _of(HEX, 40)),
        "password": kind("password={}", plain),
        "password in quotes": kind('password: "{}"', "two words " + _of(ALNUM, 5)),
        "option": kind("--password={}", "-" + _of(ALNUM, 9)),
        "short option name": kind("--pwd={}", _of(ALNUM, 9)),
        "key of a maker": kind("--openai-key={}", _of(ALNUM, 20)),
        "JSON": kind('{"lr": 0.1, "db": {"db_password": "{}"}}', _of(ALNUM, 12)),
        "JSON in a string": kind('{\\"api_key\\": \\"{}\\", \\"n\\": 2}', _of(ALNUM, 12)),
        "Python's dict": kind("{'x-api-key': '{}', 'n': 2}", _of(ALNUM, 12)),
        "rendezvous": kind("--rdzv-conf=timeout=900,password={},retries=2", _of(ALNUM, 12)),
        "header": kind("Authorization: Bearer {}", _of(ALNUM, 30)),
        "basic header": kind("Authorization: Basic {}", _base64(15)),
        "cookie": kind("Cookie: session={}", _of(ALNUM, 30) + "; other=" + _of(ALNUM, 30)),
        "token in a URL": kind("https://{}@github.com/org/repo.git", _of(HEX, 40)),
        "password in a URL": kind("postgresql://trainer:{}@db.internal:5432/runs", _of(ALNUM, 10)),
        "odd password in a URL": kind("redis://:{}@cache:6379/0", odd),
        "a URL's parameter": kind("https://host/path?a=1&access_token={}&b=2", _of(ALNUM, 20)),
        "signed URL": kind("https://b.s3.amazonaws.com/k?X-Amz-Date=2026&X-Amz-Signature={}", _of(HEX, 64)),
        "session token": kind("https://b.s3.amazonaws.com/k?X-Amz-Security-Token={}&x=1", _of(ALNUM, 80)),
        "Discord webhook": kind("https://discord.com/api/webhooks/123456789012345678/{}", _of(ALNUM + "_-", 68)),
        "Telegram bot": kind("https://api.telegram.org/bot123456789:{}/sendMessage", _of(ALNUM + "_-", 35)),
        "Teams webhook": kind("https://acme.webhook.office.com/{}", "webhookb2/" + _of(ALNUM, 60)),
        "SAS": kind("https://a.blob.core.windows.net/c/b?sv=2022-11-02&sig={}", _of(ALNUM, 40) + "%3D"),
        "Slack webhook": kind(
            "https://hooks.slack.com/services/{}", "T" + _of(ALNUM, 8) + "/B" + _of(ALNUM, 8) + "/" + _of(ALNUM, 24)
        ),
        "connection string": kind(
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x", _base64(20)
        ),
        "YAML": kind("hf_token: {}", _of(ALNUM, 14)),
        "netrc": kind("machine api.wandb.ai login user password {}", _of(HEX, 40)),
        "Dockerfile": kind("ENV WANDB_API_KEY {}", _of(HEX, 40)),
        "sentence": kind("your API key is {}, keep it", _of(ALNUM, 24)),
        "shell's trace": kind("+ wandb login {}", _of(HEX, 40)),
        "traced curl": kind("+ curl -sS -u me:{} https://host/x", _of(ALNUM, 9)),
        "traced curl with quotes": kind("+ curl --user 'me:{}' https://host/x", "two words " + _of(ALNUM, 5)),
        "traced mysql": kind("+ mysql -h db -P 3306 -uroot -p{} runs", _of(ALNUM, 9)),
        "traced sshpass": kind("+ sshpass -p {} ssh host", _of(ALNUM, 9)),
        "traced redis-cli": kind("+ redis-cli -h cache -a {} ping", _of(ALNUM, 9)),
        "traced docker login": kind("+ docker login -u me -p {} registry.host", _of(ALNUM, 9)),
        "kubeconfig": kind(
            "client-key-data: {}",
            base64.b64encode(b"-----BEGIN RSA " + b"PRIVATE KEY-----" + _RANDOM.randbytes(99)).decode(),
        ),
        "service account": kind('{"type": "service_account", "private_key_id": "{}"}', _of(HEX, 40)),
    }


IN_TEXT: Mapping[str, tuple[str, str]] = _named()
"""Text that holds a secret, and the secret: what stands around it gives it away."""

AS_WORDS: Mapping[str, tuple[tuple[str, ...], str]] = {
    name: (words, words[-1].removeprefix("X-Custom-Auth: Bearer "))
    for name, words in {
        "--api-key X": ("--api-key", _of(ALNUM, 12)),
        "--pwd X": ("--pwd", _of(ALNUM, 9)),
        "--dsn X": ("--dsn", "https://" + _of(HEX, 32) + "/1"),
        "-p X": ("-p", _of(ALNUM, 9)),
        "--openai-key X": ("--openai-key", _of(ALNUM, 9)),
        "--key X": ("--key", _of(ALNUM, 12)),
        "--password -X": ("--password", "-" + _of(ALNUM, 9)),
        "--cookie X": ("--cookie", "sid=" + _of(ALNUM, 20) + "; x=1"),
        "--header X": ("--header", "X-Custom-Auth: Bearer " + _of(ALNUM, 30)),
    }.items()
}
"""Words of a command line, and the secret in the last."""

PRIVATE_KEY = _key()
KEY_LINES = tuple(PRIVATE_KEY.split("\n")[1:-1])
