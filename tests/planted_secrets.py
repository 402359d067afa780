"""Secrets of many kinds to plant, other ones each time: none stands in this file as it is.

Random base64 alone is known by how it looks, which 6 of 1,000 do not: there, the seed is fixed. So is that of a value
whose words before it are lost within a string of JSON (netrc, Dockerfile, a sentence): 1 of 100 of these stay.
"""

from __future__ import annotations

import base64
import json
import random
import string
from collections.abc import Mapping
from urllib.parse import quote

_RANDOM = random.Random()
_FIXED = random.Random(20)
_FIXED_WORDS = random.Random(7)
ALNUM = string.ascii_letters + string.digits
HEX = "0123456789abcdef"


def _of(alphabet: str, count: int, draw: random.Random = _RANDOM) -> str:
    """With a digit, a capital and a small letter near its begin, if the alphabet has them: most have."""
    found = "".join(draw.choice(alphabet) for _ in range(count))
    kinds = [kind for kind in (string.digits, string.ascii_uppercase, string.ascii_lowercase) if {*kind} & {*alphabet}]
    return found if count < 8 or all({*found[:30]} & {*kind} for kind in kinds) else _of(alphabet, count, draw)


def _base64(count: int) -> str:
    return base64.b64encode(_FIXED.randbytes(count)).decode()


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
    "Doppler": "dp.pt." + _of(ALNUM, 43),
    "Mailgun": "key-" + _of(HEX, 32),
    "Twilio": "SK" + _of(HEX, 32),
    "Vault batch": "hvb." + _of(ALNUM + "_-", 140),
    "GitLab application": "gloas-" + _of(HEX, 64),
    "LangSmith": "lsv2_pt_" + _of(HEX, 32) + "_" + _of(HEX, 10),
    "Pinecone": "pcsk_" + _of(ALNUM, 6) + "_" + _of(ALNUM, 63),
    "RunPod": "rpa_" + _of(string.ascii_uppercase + string.digits, 42),
    "Prefect": "pnu_" + _of(ALNUM, 36),
    "Pulumi": "pul-" + _of(HEX, 40),
    "RubyGems": "rubygems_" + _of(HEX, 48),
    "Postman": "PMAK-" + _of(HEX, 24) + "-" + _of(HEX, 34),
    "Grafana": "glsa_" + _of(ALNUM, 32) + "_" + _of(HEX, 8),
    "Sentry": "sntryu_" + _of(HEX, 64),
    "New Relic": "NRAK-" + _of(string.ascii_uppercase + string.digits, 27),
    "PlanetScale": "pscale_tkn_" + _of(ALNUM + "_-", 43),
    "Alibaba": "LTAI" + _of(ALNUM, 20),
    "JFrog": "AKCp" + _of(ALNUM, 69),
    "OpenShift": "sha256~" + _of(ALNUM, 43),
    "Square": "sq0csp-" + _of(ALNUM, 43),
    "Brevo": "xkeysib-" + _of(HEX, 64) + "-" + _of(ALNUM, 16),
    "Notion": "ntn_" + _of(string.digits, 11) + _of(ALNUM, 35),
    "HubSpot": "pat-na1-" + "-".join(_of(HEX, count) for count in (8, 4, 4, 4, 12)),
    "Stripe restricted": "rk_test_" + _of(ALNUM, 24),
    "Bitbucket": "ATBB" + _of(ALNUM, 32),
    "Terraform": "atlasv1." + _of(ALNUM, 67),
    "RFC 8959": "secret-token:" + _of(ALNUM, 20),
}
"""Values that show by their form what they are, wherever they stand."""


def _planted(text: str, secret: str) -> tuple[str, str]:
    return text.replace("{}", secret), secret


def _named() -> dict[str, tuple[str, str]]:
    hexadecimal, plain, odd = _of(HEX, 40), "correct-horse" + _of(ALNUM, 6), "p@ss/w:" + _of(ALNUM, 8)
    return {
        "W&B by name": _planted("WANDB_API_KEY={}", hexadecimal),
        "W&B by option": _planted("--wandb.key={}", _of(HEX, 40)),
        "password": _planted("password={}", plain),
        "password in quotes": _planted('password: "{}"', "two words " + _of(ALNUM, 5)),
        "option": _planted("--password={}", "-" + _of(ALNUM, 9)),
        "short option name": _planted("--pwd={}", _of(ALNUM, 9)),
        "key of a maker": _planted("--openai-key={}", _of(ALNUM, 20)),
        "JSON": _planted('{"lr": 0.1, "db": {"db_password": "{}"}}', _of(ALNUM, 12)),
        "JSON in a string": _planted('{\\"api_key\\": \\"{}\\", \\"n\\": 2}', _of(ALNUM, 12)),
        "Python's dict": _planted("{'x-api-key': '{}', 'n': 2}", _of(ALNUM, 12)),
        "rendezvous": _planted("--rdzv-conf=timeout=900,password={},retries=2", _of(ALNUM, 12)),
        "header": _planted("Authorization: Bearer {}", _of(ALNUM, 30)),
        "basic header": _planted("Authorization: Basic {}", _base64(15)),
        "cookie": _planted("Cookie: session={}", _of(ALNUM, 30) + "; other=" + _of(ALNUM, 30)),
        "token in a URL": _planted("https://{}@github.com/org/repo.git", _of(HEX, 40)),
        "password in a URL": _planted("postgresql://trainer:{}@db.internal:5432/runs", _of(ALNUM, 10)),
        "odd password in a URL": _planted("redis://:{}@cache:6379/0", odd),
        "a URL's parameter": _planted("https://host/path?a=1&access_token={}&b=2", _of(ALNUM, 20)),
        "signed URL": _planted("https://b.s3.amazonaws.com/k?X-Amz-Date=2026&X-Amz-Signature={}", _of(HEX, 64)),
        "session token": _planted("https://b.s3.amazonaws.com/k?X-Amz-Security-Token={}&x=1", _of(ALNUM, 80)),
        "Discord webhook": _planted("https://discord.com/api/webhooks/123456789012345678/{}", _of(ALNUM + "_-", 68)),
        "Telegram bot": _planted("https://api.telegram.org/bot123456789:{}/sendMessage", _of(ALNUM + "_-", 35)),
        "Teams webhook": _planted("https://acme.webhook.office.com/{}", "webhookb2/" + _of(ALNUM, 60)),
        "SAS": _planted("https://a.blob.core.windows.net/c/b?sv=2022-11-02&sig={}", _of(ALNUM, 40) + "%3D"),
        "Slack webhook": _planted(
            "https://hooks.slack.com/services/{}", "T" + _of(ALNUM, 8) + "/B" + _of(ALNUM, 8) + "/" + _of(ALNUM, 24)
        ),
        "connection string": _planted(
            "DefaultEndpointsProtocol=https;AccountName=a;AccountKey={};EndpointSuffix=x", _base64(20)
        ),
        "YAML": _planted("hf_token: {}", _of(ALNUM, 14)),
        "netrc": _planted("machine api.wandb.ai login user password {}", _of(HEX, 40, _FIXED_WORDS)),
        "Dockerfile": _planted("ENV WANDB_API_KEY {}", _of(HEX, 40, _FIXED_WORDS)),
        "sentence": _planted("your API key is {}, keep it", _of(ALNUM, 24, _FIXED_WORDS)),
        "shell's trace": _planted("+ wandb login {}", _of(HEX, 40)),
        "traced curl": _planted("+ curl -sS -u me:{} https://host/x", _of(ALNUM, 9)),
        "traced curl with quotes": _planted("+ curl --user 'me:{}' https://host/x", "two words " + _of(ALNUM, 5)),
        "traced mysql": _planted("+ mysql -h db -P 3306 -uroot -p{} runs", _of(ALNUM, 9)),
        "traced sshpass": _planted("+ sshpass -p {} ssh host", _of(ALNUM, 9)),
        "traced redis-cli": _planted("+ redis-cli -h cache -a {} ping", _of(ALNUM, 9)),
        "traced docker login": _planted("+ docker login -u me -p {} registry.host", _of(ALNUM, 9)),
        "kubeconfig": _planted(
            "client-key-data: {}",
            base64.b64encode(b"-----BEGIN RSA " + b"PRIVATE KEY-----" + _RANDOM.randbytes(99)).decode(),
        ),
        "service account": _planted('{"type": "service_account", "private_key_id": "{}"}', _of(HEX, 40)),
    }


def _in_markup() -> dict[str, tuple[str, str]]:
    return {
        name: _planted(text, _of(ALNUM, 12))
        for name, text in {
            "element": "<password>{}</password>",
            "element with attributes": '<ns:Password type="plain">{}</ns:Password>',
            "element over lines": "<db>\n  <password>\n    {}\n  </password>\n</db>",
            "Hadoop's property": "<property><name>fs.s3a.secret.key</name>\n<value>{}</value></property>",
            "property list": "<key>password</key>\n  <string>{}</string>",
            "attributes": '<add key="Password" value="{}" />',
            "element in entities": "&lt;password&gt;{}&lt;/password&gt;",
            "JSON in entities": "{&quot;password&quot;:&quot;{}&quot;}",
            "JSON in entities twice": "{&amp;quot;password&amp;quot;:&amp;quot;{}&amp;quot;}",
            "Kubernetes' variable": '{"env": [{"name": "HF_TOKEN", "value": "{}"}]}',
            "Kubernetes' variable in YAML": "env:\n- name: WANDB_API_KEY\n  value: {}",
        }.items()
    }


def _between_other_signs() -> dict[str, tuple[str, str]]:
    return {
        name: _planted(text, _of(ALNUM, 12))
        for name, text in {
            "three quotes": 'passphrase = """{}"""',
            "three single quotes": "passphrase = '''{}'''",
            "three quotes over lines": 'password = """\n{}\n"""',
            "block of YAML": "db:\n  password: |\n    {}\n  user: me",
            "folded block of YAML": "password: >-\n  {}\nuser: me",
            "backticks": "password=`{}`",
            "curly quotes": "password: “{}”",
            "guillemets": "password: «{}»",
            "option in the next line": "train.py \\\n  --password \\\n  {} \\\n  --lr 0.1",
            "arrow": "password -> {}",
            "double arrow": "'password' => '{}'",
            "long arrow": "password --> {}",
            "arrow sign": "password → {}",
            "double arrow sign": "api_key ⇒ {}",
            "full-width equals": "password＝{}",
            "full-width colon": "password：{}",
            "full-width letters": "ｐａｓｓｗｏｒｄ＝{}",
            "walrus": "password := {}",
            "double equals": "password == {}",
            "no-break space": "password:\u00a0{}",
            "table": "| user | me |\n| password | {} |",
            "table of rich": "│ password │ {} │",
            "pair": "[('X-Api-Key', '{}'), ('Accept', '*/*')]",
            "pair of bytes": "[(b'authorization', b'Bearer {}'), (b'accept', b'*/*')]",
            "export": 'declare -x HF_TOKEN="{}"',
            "Namespace": "Namespace(lr=0.1, api_key='{}', epochs=3)",
            "environ": "environ({'WANDB_API_KEY': '{}', 'HOME': '/root'})",
            "environ by key": "os.environ['WANDB_API_KEY'] = '{}'",
            "JDBC": "jdbc:postgresql://db:5432/runs?user=me&password={}&ssl=true",
            "ODBC": "Driver={x};Server=db;Uid=me;Pwd={};",
            "SQL": "ALTER ROLE me WITH PASSWORD '{}'",
            "camel case": "dbPassword={}",
            "German": "Passwort: {}",
            "German too": "Kennwort = {}",
            "French": "Mot de passe : {}",
            "Spanish": "contraseña: {}",
            "Spanish capitals": "CONTRASEÑA={}",
            "Portuguese": "senha={}",
            "Polish": "Hasło: {}",
            "Czech": "heslo={}",
            "Dutch": "wachtwoord: {}",
            "Swedish": "Lösenord: {}",
            "Turkish": "şifre: {}",
            "Russian": "Пароль: {}",
            "Greek": "κωδικός: {}",
            "Chinese": "数据库密码：{}",
            "Japanese": "パスワード：{}",
            "Korean": "비밀번호: {}",
        }.items()
    }


def _encoded() -> dict[str, tuple[str, str]]:
    token, plain = "ghp_" + _of(ALNUM, 36), _of(ALNUM, 12)
    fields = json.dumps({"password": plain, "n": 2})
    registry = json.dumps({"auths": {"r": {"username": "u", "password": plain}}})
    halves = token[:18], token[18:]
    web = "eyJhbGciOiJIUzI1NiJ9.eyJ" + _of(ALNUM, 70), _of(ALNUM, 30) + "." + _of(ALNUM, 43)

    def in_base64(text: str) -> str:
        return base64.b64encode(text.encode()).decode()

    def over_lines(text: str, parts: tuple[str, str]) -> tuple[str, str]:
        return text.format(*parts), " ".join(parts)

    return {
        "percent signs": (f"body={quote(fields, safe='')}", plain),
        "percent signs in capitals and small": (f"POST /x {quote(fields, safe='').lower()}", plain.lower()),
        "percent signs twice": (f"body={quote(quote(fields, safe=''), safe='')}", plain),
        "percent signs in a URL": (f"https://h/login?next=%2Fx%3Fpassword%3D{plain}%26n%3D2", plain),
        "JSON with escapes": (fields.replace('"', "\\u0022"), plain),
        "Python with escapes": (fields.replace('"', "\\x22"), plain),
        "JSON in JSON in JSON": (json.dumps(json.dumps(fields)), plain),
        "escaped letters": (json.dumps(f"密码：{plain}"), plain),
        "colour before the value": (f"api_key=\x1b[32m{plain}\x1b[0m", plain),
        "colours around everything": (f'\x1b[34m"api_key"\x1b[0m\x1b[90m: \x1b[0m\x1b[32m"{plain}"\x1b[0m', plain),
        "colour within a token": (f"\x1b[1m{token[:9]}\x1b[0m{token[9:]}", token[9:]),
        "colours in JSON": (json.dumps({"message": f"api_key\x1b[0m=\x1b[32m{plain}\x1b[0m"}), plain),
        "colours in JSON in JSON": (json.dumps(json.dumps(f"api_key\x1b[0m=\x1b[1;32m{plain}\x1b[0m")), plain),
        "colours of a shell": (f"api_key=\\033[32m{plain}\\033[0m", plain),
        "colours in Python's repr": (repr(f"api_key=\x1b[38;5;2m{plain}\x1b[0m"), plain),
        "token in base64": (f"data: {in_base64(token)}", in_base64(token)),
        "token within base64": (f"data: {in_base64('user:' + token + chr(10))}", in_base64("user:" + token)[:60]),
        "fields in base64": (f"--config {in_base64(fields)}", in_base64(fields)),
        "registry in base64": (f".dockerconfigjson: {in_base64(registry)}", in_base64(registry)),
        "base64 twice": (f"data: {in_base64(in_base64(token))}", in_base64(in_base64(token))),
        "token over two lines": over_lines("refused: {}\n{} (401)", halves),
        "token over two indented lines": over_lines("  token_of_bot {}\n  {}\n", halves),
        "token over two lines of a box": over_lines("│ got {} │\n│ {}  │", halves),
        "token over two lines of a rank": over_lines("[rank1]: got {}\n[rank1]: {}", halves),
        "token over two lines of a rank, indented": over_lines("  [rank1]: got {}\n  [rank1]: {}", halves),
        "token cut early": over_lines("got {}\n{}", (token[:9], token[9:])),
        "token cut late": over_lines("got {}\n{}", (token[:-6], token[-6:])),
        "web token over two lines": over_lines("refused: {}\n{}", web),
    }


IN_TEXT: Mapping[str, tuple[str, str]] = {**_named(), **_in_markup(), **_between_other_signs(), **_encoded()}
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
