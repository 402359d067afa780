"""What must not reach files that ddp-run writes itself, and what must stay readable there."""

from __future__ import annotations

import base64
import json
import shlex
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.planted_secrets import AS_WORDS, BY_FORM, IN_TEXT, KEY_LINES, PRIVATE_KEY
from tests.unchanged import slow_if_unchanged
from tests.waiting import limit

from ddp_run.record.events import ExceptionInfo, MonotonicNs, Rank, RankFailed
from ddp_run.values import redaction
from ddp_run.values.redaction import (
    REDACTED,
    is_secret,
    kinds_in,
    redact_lines,
    redact_mapping,
    redact_value,
    redact_words,
)
from ddp_run.values.redaction import cleaned as redact  # what goes wrong is to be seen here

PLANTED = [*BY_FORM.values(), *(text for text, _secret in IN_TEXT.values()), "\n".join(KEY_LINES[:3])]
LONG_OPTIONS = {name: words for name, (words, _secret) in AS_WORDS.items() if words[0] in ("--api-key", "--password")}
DOCUMENTS = Path(__file__).resolve().parents[2]
SAMPLES = Path(__file__).resolve().parents[1] / "rules"


# ------------------------------------------------------------------------------------------ what is hidden


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "--password", "aws_secret_access_key", "authToken"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize(
    "name",
    ["MASTER_ADDR", "--lr", "NCCL_DEBUG", "keyboard", "--monkey", "--author", "--tokenizer", "--max-tokens",
     "pad_token", "pad_token_id", "--use-token", "password_file", "KeyError", "num_tokens", "TOKENIZERS_PARALLELISM"],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)


@pytest.mark.parametrize("kind", BY_FORM)
@pytest.mark.parametrize(
    "around",
    [
        "{}",
        "it failed for {}.",
        "x={}",
        '"{}"',
        "('{}',)",
        "got {}: refused",
        "\x1b[31m{}\x1b[0m",
        "https://host/a?b={}",
    ],
)
def test_values_that_show_what_they_are(kind: str, around: str) -> None:
    secret = BY_FORM[kind]
    cleaned = redact(around.replace("{}", secret))
    assert secret not in cleaned
    assert REDACTED in cleaned


@pytest.mark.parametrize("kind", IN_TEXT)
@pytest.mark.parametrize("around", ["{}", "it failed with {}", "first: 1\n  {} \nlast"])
def test_what_a_name_gives_away(kind: str, around: str) -> None:
    text, secret = IN_TEXT[kind]
    cleaned = redact(around.replace("{}", text))
    assert not any(part in cleaned for part in secret.split() if len(part) > 4), cleaned
    assert REDACTED in cleaned


@pytest.mark.parametrize("kind", IN_TEXT)
def test_a_word_of_a_command_line(kind: str) -> None:
    text, secret = IN_TEXT[kind]
    (_script, cleaned) = redact_words(["train.py", text])
    assert not any(part in cleaned for part in secret.split() if len(part) > 4), cleaned


@pytest.mark.parametrize("kind", AS_WORDS)
def test_the_word_after_an_option(kind: str) -> None:
    words, secret = AS_WORDS[kind]
    cleaned = redact_words(["train.py", *words, "--lr", "0.1"])
    assert secret not in " ".join(cleaned)
    assert (cleaned[0], cleaned[1], cleaned[-2:]) == ("train.py", words[0], ("--lr", "0.1"))


TOKEN = BY_FORM["GitHub"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        ("--api-key my_key", "--api-key [redacted]"),  # a word of a command line is no code
        ("--password=my_password", "--password=[redacted]"),
        ("'--password=two words' train.py", "'--password=[redacted]' train.py"),
        ("--api-key --verbose", "--api-key --verbose"),
        ("--api-key=k1 trainer1", "--api-key=[redacted] trainer1"),
        ("'--rdzv-conf=timeout=900,password=k1'", "'--rdzv-conf=timeout=900,password=[redacted]'"),
        ("--token 'Bearer Qx81kdl0'", "--token 'Bearer [redacted]'"),
        ("--token Qx81kdl0", "--token [redacted]"),
        ("curl -u me:s3cr:t host", "curl -u me:[redacted] host"),
        ("curl --user me:s3cr:t host", "curl --user me:[redacted] host"),
        ("docker run -u 1000:1000 image", "docker run -u 1000:1000 image"),
        ("x --user http://host", "x --user http://host"),
        ("wandb login Qx81kdl0Zy72", "wandb login [redacted]"),
        ("wandb login host", "wandb login host"),
    ],
)
def test_a_command_line(words: str, shown: str) -> None:
    assert redact_words(shlex.split(words)) == tuple(shlex.split(shown))


def test_words_after_and_within_an_option() -> None:
    words = ("train.py", "--api-key", "k1", "--token=k2", "HF_TOKEN=k3", "--lr", "0.1", "--use-token", "--verbose")
    assert redact_words(words) == (
        "train.py", "--api-key", REDACTED, f"--token={REDACTED}", f"HF_TOKEN={REDACTED}", "--lr", "0.1",
        "--use-token", "--verbose",
    )  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "['train.py', '--api-key', '{}', '--lr', '0.1']",
        'argv: ["--password","{}"]',
        '  "command": [\n    "--hf-token",\n    "{}",\n    "--lr"\n  ]',
        r'{"said": "[\"--api-key\", \"{}\"]"}',
        "('--token', b'{}')",
    ],
)
def test_a_command_line_as_a_list(text: str) -> None:
    assert redact(text.replace("{}", "Qx81kdl0")) == text.replace("{}", REDACTED)


@pytest.mark.parametrize("depth", [1, 2])
def test_lines_within_a_string_of_json(depth: int) -> None:
    lines = [f"refused: {secret}" for secret in BY_FORM.values()]
    lines += [text for text, _secret in IN_TEXT.values()] + [f"\t{' '.join(words)}" for words in LONG_OPTIONS.values()]
    text = "\n".join([*lines, PRIVATE_KEY, "the end"])
    count = len(text.splitlines())
    for _ in range(depth):
        text = json.dumps({"message": text, "n": 2})
    cleaned = redact(text)
    secrets = [*BY_FORM.values(), *(secret for _text, secret in IN_TEXT.values()), *KEY_LINES]
    secrets += [words[-1] for words in LONG_OPTIONS.values()]
    assert [part for secret in secrets for part in secret.split() if len(part) > 4 and part in cleaned] == []
    for _ in range(depth):
        cleaned = json.loads(cleaned)["message"]
    assert cleaned.splitlines()[-1] == "the end"
    assert len(cleaned.splitlines()) == count


def test_kinds_are_told_without_their_values() -> None:
    for kind, secret in BY_FORM.items():
        (told,) = kinds_in(f"it failed for {secret}.")
        assert secret not in told, kind
    assert kinds_in(BY_FORM["GitHub"]) == ("token: GitHub",)
    assert kinds_in(PRIVATE_KEY) == ("private key",)
    assert kinds_in("--api-key=Qx81kdl0 --api-key=Qx81kdl1") == ("value of --api-key",)
    assert kinds_in("postgresql://me:pass@db:5432/x") == ("user or password in a URL",)
    assert kinds_in("loss 2.3451 lr 3.00e-04 tokens 1048576") == ()


def test_an_environment() -> None:
    given = {"DB_PASSWORD": "x", "PWD": "/home/me", "NCCL_DEBUG": "WARN", "PROXY": "http://me:secret@proxy:3128"}
    assert redact_mapping(given) == {
        "DB_PASSWORD": REDACTED,
        "PWD": "/home/me",
        "NCCL_DEBUG": "WARN",
        "PROXY": f"http://{REDACTED}@proxy:3128",
    }


def test_a_value_of_the_environment_is_no_code() -> None:
    assert redact_mapping({"DB_PASSWORD": "my_password"}) == {"DB_PASSWORD": REDACTED}


def test_of_two_signs_of_a_secret_the_longer_is_hidden_whole() -> None:
    assert redact(f"password={TOKEN}_tail!") == f"password={REDACTED}"
    assert redact(f'password: "before {TOKEN} after", "n": 2') == f'password: "{REDACTED}", "n": 2'


def test_a_secret_over_lines_leaves_their_blanks_and_ends() -> None:
    assert redact('password = """\n  one\n\n \ntwo """') == f'password = """\n  {REDACTED}\n\n \n{REDACTED} """'


def test_base64_in_percent_signs_is_hidden_whole() -> None:
    data = base64.b64encode(b'{"password": "xy", "note": "~~~>>>???"}').decode()
    assert "+" in data
    assert redact(f"https://host/x?config={quote(data, safe='')}&n=2") == f"https://host/x?config={REDACTED}&n=2"


@pytest.mark.parametrize("count", [1, 400])
def test_a_token_at_the_begin_of_a_line_however_long_the_log(count: int) -> None:
    lines = [f"step of {'abc'[step % 3] * (step % 90)}: loss {step / 7}" for step in range(count)]
    assert redact("\n".join([*lines, TOKEN, *lines])).split("\n") == [*lines, REDACTED, *lines]


def test_users_of_urls() -> None:
    assert redact("https://me:pass@host/path") == f"https://{REDACTED}@host/path"
    assert redact("redis://:p@ss/w@cache:6379/0") == f"redis://{REDACTED}@cache:6379/0"
    assert redact("a=http://u:p@h.io/x?next=https://v:q@h.io") == f"a=http://{REDACTED}@h.io"


@pytest.mark.parametrize("prefix", ["", "[rank3]: ", "2026-01-01T00:00:00 node-a | "])
def test_a_private_key(prefix: str) -> None:
    lines = ["before", *PRIVATE_KEY.split("\n"), "after the key"]
    lines = [prefix + line for line in lines]
    for shown in (lines, lines[: len(lines) // 2], lines[len(lines) // 2 :]):
        cleaned = redact_lines(shown)
        assert len(cleaned) == len(shown)
        assert not any(key in line for key in KEY_LINES for line in cleaned)
    assert redact_lines(lines)[:2] == tuple(lines[:2])
    assert redact_lines(lines)[-2:] == tuple(lines[-2:])
    assert redact_lines(lines[5:8])[1] != lines[6]


def test_a_private_key_in_json() -> None:
    text = json.dumps({"type": "service_account", "key": PRIVATE_KEY, "client_email": "a@b.iam"})
    cleaned = redact(text)
    assert not any(key in cleaned for key in KEY_LINES)
    assert "client_email" in cleaned


def test_a_token_that_was_cut() -> None:
    assert redact("refused: hf_AbCdEfG") == f"refused: {REDACTED}"
    assert redact("refused: ghp_AbCd1f… (300 characters)") == f"refused: {REDACTED}… (300 characters)"


def test_values_of_events() -> None:
    text, secret = IN_TEXT["password"]
    raised = ExceptionInfo("ValueError", text, "train.py", 3, "main", f"Traceback\nValueError: {text}")
    cleaned = redact_value(RankFailed(MonotonicNs(1), Rank(1), 0, 1, raised))
    assert isinstance(cleaned, RankFailed)
    assert secret not in repr(cleaned)
    assert (cleaned.exception and cleaned.exception.file, cleaned.rank) == ("train.py", 1)


@dataclass(frozen=True)
class Held:
    text: str
    inner: object = None
    count: int = field(default=0, init=False)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (TOKEN, REDACTED),
        ([TOKEN, "x"], [REDACTED, "x"]),
        ((TOKEN, 1, None), (REDACTED, 1, None)),
        (("x", (TOKEN, 2)), ("x", (REDACTED, 2))),
        ({"a": TOKEN, "b": 2}, {"a": REDACTED, "b": 2}),
        ({"a": {"b": [1, {"c": TOKEN}]}}, {"a": {"b": [1, {"c": REDACTED}]}}),
        (Held("x", Held(TOKEN)), Held("x", Held(REDACTED))),
        (Held("x", ([], TOKEN, ())), Held("x", ([], REDACTED, ()))),
        (Held("x", {"a": 1}), Held("x", {"a": 1})),
    ],
    ids=["text", "list", "tuple", "tuples", "dict", "dicts", "dataclass", "dataclass with a tuple", "nothing"],
)
def test_a_secret_at_any_depth_of_a_value(value: object, shown: object) -> None:
    assert redact_value(value) == shown


def test_a_private_key_over_the_lines_of_a_value() -> None:
    lines = ["before", *PRIVATE_KEY.split("\n"), "after"]
    for value in (lines, tuple(lines), {"lines": lines}, [1, lines]):
        cleaned = redact_value(value)
        assert type(cleaned) is type(value)
        assert not any(key in str(cleaned) for key in KEY_LINES)
        assert "'before'" in str(cleaned)


def test_lines_that_hold_ends_of_lines() -> None:
    assert redact_lines(["one\ntwo", f"got {TOKEN}"]) == ("one\ntwo", f"got {REDACTED}")
    assert redact_lines([]) == ()


# ---------------------------------------------------------------------------------------- what stays


@pytest.mark.parametrize(
    "text",
    [
        "KeyError: 'layers.10.attn.k_proj.weight'",
        "Missing key(s) in state_dict: \"model.embed_tokens.weight\", \"lm_head.weight\".",
        "Unexpected key: layers.0.mlp.experts.3.w1, shape (14336, 4096)",
        "max_tokens=4096 num_tokens: 12345678901 tokens/s: 1.2e5 pad_token_id=0 eos_token='</s>' pad_token=<pad>",
        "SyntaxError: Unexpected token: }, line 3; unknown token: banana",
        "--tokenizer meta-llama/Llama-3.1-8B-Instruct --lr 3e-4 --seed 1234567 --key-padding-mask",
        "commit 3f786850e387550fdab836ed7e6dc881de23001b of main (run 20261121-081500-a1b2)",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        "integrity sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU=",
        "/home/me/.cache/huggingface/hub/models--gpt2/snapshots/607a30d783dfa663caf39e06633721c8d4cfbd0f/x.safetensors",
        "/data/Runs/ResNet50v2-ImageNet2012-BS1024-LR01/Checkpoint_Epoch90/Model.pt",
        "git+https://github.com/org/repo@v1.2.3#egg=x ssh://git@github.com/o/r abfss://data@acct.dfs.core.windows.net/x",
        "http://localhost:29500/a@b tcp://10.0.0.1:29500 https://medium.com/@me/post s3://bucket/a@2x.png",
        "/root/.triton/cache/7QJHMVWGVTPWJRRVVTRUVUXPMYSKZXMWMBNTWQZJOPPSXUZ3M3YQ/kernel.so",
        "NCCL_SOCKET_IFNAME=eth0 TORCH_NCCL_ASYNC_ERROR_HANDLING=1 TOKENIZERS_PARALLELISM=false PWD=/home/me/work",
        "uuid 123e4567-e89b-12d3-a456-426614174000, GPU-8f6b2d9e-1c3a-4f5b-9d7e-2a1b3c4d5e6f",
        "_ZN3c106detail14torchCheckFailEPKcS2_jRKSs (0x7f3c5a2b1c40 in libc10.so)",
        "    token = os.environ[\"HF_TOKEN\"]",
        "    client = OpenAI(api_key=settings.openai_api_key, password=get_password(), token=token)",
        "def login(password: str, token: Optional[str] = None) -> None:",
        "storages[storage_key] = storage; def f(token=None): self.token = self._NULL",
        "out = attn(query, key=key, value=value, key_padding_mask=mask)",
        "PermissionError: [Errno 13] Permission denied: '/data/secrets/hf_token'",
        "FileNotFoundError: password_file=/run/secrets/db not found; --token-file=/etc/token",
        "sk-learn-pipeline-2024-baseline-with-a-long-name task-runner-disk-cleanup hf_hub_download hf_transfer",
        "signature: aten::add(Tensor input, Tensor other, *, Scalar alpha=1) -> Tensor",
        "RuntimeError: forward pass: 3 of 4, bypass=True, passed: 17, keys: 12, session=train01",
        "error: bearer authentication is not supported; author: me; authors=a,b",
        "loss 2.3451 lr 3.00e-04 grad_norm 1.2345 tokens 1048576 step 1200/50000 [00:12<01:33, 8.3it/s]",
        "torch.Size([32, 2048, 4096]) bf16 cuda:3 rank3/8 --nproc-per-node=8 -p 29500:29500",
        "DistributedDataParallelTestCaseForHighPrecisionModelsWithGradients",
        "secrets.json: not found; /app/credentials.py:12: error; password_utils.py:15 in login",
        "cache key: fdab836ed7e6dc881de23001b3f786850, cache_key=3f786850e387550fdab836ed7e6dc881de23001b",
        "s3_key=data/train/shard-0001.tar object_key: runs/2026/a1b2c3d4e5f60718",
        "+ curl -u me -o x https://host:8080/y; mysql -p runs; sshpass -f file ssh -p 2222 host; mkdir -p /data/x",
        "curl: (6) Could not resolve host: pypi.org; mysql-connector -pip; docker login --password-stdin",
        "['train.py', '--password', '--lr', '0.1'] ['--tokenizer', 'gpt2', '--key', 'loss'] {'token', 'Qx81kdl0'}",
    ],
)  # fmt: skip
def test_what_people_need_to_read_stays(text: str) -> None:
    assert redact(text) == text


@pytest.mark.parametrize(
    "words",
    [
        ("-p", "bf16-mixed", "-u", "1000:1000", "--user", "1000:1000", "-p", "gpu-long", "--auth-mode", "oauth2"),
        ("--lr", "3e-4", "--seed", "1234", "--tokenizer", "gpt2", "--model=meta-llama/Llama-2-7b-hf", "-p", "8080"),
        ("-p", "/data/x", "--key", "loss", "--image-key", "jpg_0001", "--text-key=caption", "--pad-token", "<pad>"),
        ("trainer.devices=8", "model.key_dim=64", "data.tokenizer=gpt2", "+logger.version=2026-01-01_run-12ab34"),
        ("--resume", "/ckpt/step-1000/model-00001-of-00008.safetensors", "--commit", "3f786850e387550fdab836ed7e6dc88"),
    ],
)
def test_command_lines_stay(words: tuple[str, ...]) -> None:
    assert redact_words(words) == words


def test_command_lines_of_the_documents_stay() -> None:
    found = [
        shlex.split(line, comments=True)
        for path in (DOCUMENTS / "README.md", *(DOCUMENTS / "docs").rglob("*.md"), *(DOCUMENTS / "configs").iterdir())
        for line in path.read_text().splitlines()
        if line.lstrip("$ ").startswith(("ddp-run ", "torchrun ")) and line.count("'") % 2 == 0 and '"' not in line
    ]
    assert len(found) > 30
    assert [words for words in found if redact_words(words) != tuple(words)] == []


def test_what_real_logs_lose() -> None:
    """Of the logs of the catalogue's samples, which hold no secrets but the made-up ones that are about secrets."""
    changed: list[str] = []
    lines = 0
    for path in sorted(SAMPLES.rglob("*")):
        if path.is_file() and path.suffix in (".log", ".txt", ".json", ".jsonl"):
            for line in path.read_text(errors="replace").splitlines():
                lines += 1
                if redact(line) != line:
                    changed.append(f"{path.relative_to(SAMPLES)}: {redact(line)[:300]}")
    assert lines > 2000
    assert not changed, "\n".join(changed)


# ------------------------------------------------------------------------------------------ how it does so

_PIECES = st.sampled_from(
    ["token", "key", "=", ": ", '"', "'", "\\", "\n", " ", "://", "@", "/", "a", "9", "Z", ",", "--password", "hf_",
     "x", "AbCd12", "Bearer ", "eyJ", ".", "sig=", "é", "\x1b[1m", "]", "api ", "(", REDACTED, " " * 50, "\n" * 50,
     "\t", "\x0b", "\u2028", "is "]
)  # fmt: skip
_KEY_MARKS = st.sampled_from(["-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----"])


@given(st.lists(_PIECES, max_size=40).map("".join))
def test_twice_is_once(text: str) -> None:
    once = redact(text)
    assert redact(once) == once


@given(st.lists(_PIECES | _KEY_MARKS, max_size=40).map("".join))
def test_lines_stay(text: str) -> None:
    assert redact(text).count("\n") == text.count("\n")


@pytest.mark.parametrize("blanks", [" " * 60, "\n" * 60, "\x0b" * 60, ""])
def test_an_option_without_a_value_in_its_line(blanks: str) -> None:
    """As argparse wraps it: this ended a job whose exception quoted such a text."""
    text = f"usage: train.py --api-key \n{blanks}KEY"
    assert redact(text) == text


def test_a_key_behind_a_name_is_hidden_whole() -> None:
    body = "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC"
    assert body not in redact(f"token=-----BEGIN PRIVATE KEY-----\n{body}\n-----END PRIVATE KEY-----")
    assert body not in redact(f"token=-----BEGIN PRIVATE KEY-----{body}-----END PRIVATE KEY-----")
    whole = redact("token=-----BEGIN PRIVATE KEY----------END PRIVATE KEY-----")
    assert redact(whole) == whole


slow = slow_if_unchanged(__file__)
QUICK = ("eyJ", "://u:p", "password='", "-----BEGIN PRIVATE KEY-----", "Bearer ", "\\\\n")


PIECES = (
    ["eyJ", "key", "token=", "x_key=", "x_key=!", "token: ", "://", "://u:p", "://u@", "password='", 'token": \\"', "a",
     "hf_", "SG.", "sk-", "sk-Aa1", "AKIA", "-----BEGIN PRIVATE KEY-----", "-----END PRIVATE KEY-----", "Aa0", "-", "=",
     "Bearer ", "Cookie: ", "api key ", "--pass ", "@a.", "\x1b[", "github_pat_", "xoxb-", "password=,", "token=a,",
     "x_key='", "://a:b/", "://@:", 'token="none" ', "curl -u a:", "curl ", "mysql -p'", "redis-cli -a ",
     "Aa0+/", "\\\\", "\\\\n", "\\\\t-", "--token', '"]
)  # fmt: skip


@pytest.mark.parametrize("piece", [pytest.param(each, marks=[] if each in QUICK else [slow]) for each in PIECES])
@pytest.mark.timeout(limit(60))
def test_hostile_text_is_read_once(piece: str) -> None:
    """A second or two at most; where the cost grew with the square of the length it would be many minutes."""
    text = "@" + piece * (200_000 // len(piece)) + "@"
    assert redact(text).count("\n") == text.count("\n")


def test_a_text_that_cannot_be_cleaned_is_hidden_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(text: str) -> str:
        raise IndexError(text)

    monkeypatch.setattr(redaction, "cleaned", broken)
    assert redaction.redact("one\ntwo") == f"{REDACTED}\n{REDACTED}"
    assert redact_lines(("one", "two")) == (REDACTED, REDACTED)
    monkeypatch.setattr(redaction, "secrets_in", broken)
    assert redaction.redact_value({"a": ("one", 2)}) == {"a": (REDACTED, 2)}
