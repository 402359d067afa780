"""What the name of a value says of it, and what the value itself: whether it is to be hidden. Pure."""

from __future__ import annotations

import re
from enum import IntEnum
from functools import lru_cache

from ddp_run.values.secret_forms import REDACTED, changes


class Grade(IntEnum):
    """What a name says of its value."""

    NOTHING = 0
    MAYBE = 1
    """A secret where the value looks random."""
    LIKELY = 2
    """A secret unless the value looks like anything else."""
    SURE = 3


# ------------------------------------------------------------------------------------------------ names

HINTS = ("secret", "token", "pass", "pwd", "cred", "key", "auth", "cookie", "sign", "session", "dsn", "conn", "jwt")
"""Each name of a secret holds one of these."""
_SECRETS = frozenset(
    {"secret", "secrets", "password", "passwords", "passwd", "passphrase", "passcode", "pwd", "credential", "creds"}
    | {"credentials", "authorization", "cookie", "cookies", "dsn", "apikey", "apikeys", "apitoken", "authtoken", "jwt"}
    | {"accesskey", "secretkey", "privatekey", "accountkey", "accesstoken", "connectionstring", "userpass", "dbpass"}
)
_MAKERS = frozenset(
    {"hf", "huggingface", "hub", "wandb", "openai", "anthropic", "claude", "aws", "azure", "gcp"}
    | {"google", "gemini", "cohere", "mistral", "groq", "together", "replicate", "deepseek", "comet", "neptune"}
    | {"clearml", "mlflow", "github", "gh", "gitlab", "gl", "git", "slack", "discord", "telegram", "sentry", "stripe"}
    | {"sendgrid", "twilio", "npm", "pypi", "twine", "docker", "dockerhub", "registry", "databricks", "kaggle", "ngc"}
    | {"nvidia", "vast", "runpod", "lambda", "modal", "ray", "vault", "datadog", "dd", "jira", "roboflow", "civitai"}
)
_OF_KEYS = _MAKERS | {
    *("api", "access", "private", "secret", "account", "auth", "signing", "encryption", "master", "license"),
    *(
        "subscription",
        "shared",
        "sharedaccess",
        "deploy",
        "ssh",
        "service",
        "serviceaccount",
        "admin",
        "user",
        "client",
    ),
    *("webhook", "rsa", "pem", "gpg", "session", "security", "server", "app", "application", "consumer"),
}
_OF_TOKENS = _MAKERS | {
    *("auth", "access", "refresh", "id", "api", "bearer", "session", "security", "bot", "secret", "csrf", "xsrf"),
    *("personal", "oauth", "oauth2", "service", "login", "user", "client", "sas", "identity", "deploy", "app", "web"),
    *("read", "write", "upload", "push", "private", "device", "x", "my", "jwt", "admin", "server", "job"),
}
_OF_PASS = frozenset({"db", "user", "smtp", "redis", "mysql", "postgres", "pg", "ftp", "admin", "root", "ssh", "http"})
_NO_TOKENS = frozenset(
    {"pad", "eos", "bos", "unk", "mask", "sep", "cls", "image", "special", "stop", "start", "end", "next", "per", "max"}
    | {"min", "num", "n", "first", "last", "prefix", "new", "audio", "video", "img", "vision", "each", "sot", "eot"}
    | {"decoder", "think", "tool", "boi", "eoi", "im", "fim", "class", "register", "subword", "input", "output"}
)
_NO_KEYS = frozenset(
    {
        "cache",
        "hash",
        "graph",
        "kernel",
        "store",
        "dict",
        "sort",
        "group",
        "primary",
        "foreign",
        "lookup",
        "object",
        "s3",
    }
    | {"state", "map", "public", "index", "partition", "tuning", "bucket"}
)
_PLACES = frozenset(
    {"file", "files", "path", "paths", "dir", "directory", "folder", "name", "names", "arn", "type", "length", "len"}
    | {"size", "count", "env", "var", "variable", "field", "column", "provider", "method", "mode", "error", "exception"}
    | {"required", "invalid", "expired", "missing", "failed", "incorrect", "denied", "policy", "manager", "helper"}
    | {"warning", "timeout", "ttl", "expiry", "limit", "budget", "ids", "fn", "func", "function", "class", "cls", "dim"}
    | {"store", "location", "version", "url", "uri", "endpoint", "host", "port", "format", "prompt", "ref", "enabled"}
    | {"json", "yaml", "yml", "toml", "txt", "py", "pem", "ini", "cfg", "conf", "log", "md", "sh", "so", "html", "js"}
    | {"utils", "util", "loader", "reader", "module", "test", "tests", "page", "form", "dialog"}
    | {"check", "checks", "mixin", "plugin", "handler", "authority", "server", "scheme", "scope", "scopes", "service"}
)
"""After one of these a value says where a secret is, or what became of it."""
_SUFFIXES = frozenset(
    {"value", "str", "string", "text", "b64", "base64", "id", "plain", "prod", "dev", "live", "old", "new"}
    | {"primary", "secondary", "main", "default", "enc", "encoded", "hash", "header"}
)
_SWITCHES = frozenset({"use", "no", "with", "enable", "disable", "require", "skip", "trust", "allow", "ask", "prompt"})


def is_secret(name: str) -> bool:
    """Whether a variable or option of this name may hold a secret."""
    return grade_of(name) is not Grade.NOTHING


@lru_cache(maxsize=1024)
def grade_of(name: str) -> Grade:
    """What a variable's, an option's or a field's name says of its value."""
    lowered = name.lower()
    if name in ("PWD", "OLDPWD"):
        return Grade.LIKELY  # folders
    if len(name) > 200 or not (any(hint in lowered for hint in HINTS) or lowered.endswith("pat")):
        return Grade.NOTHING
    words = [word.lower() for word in re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+", name)]
    while len(words) > 1 and (words[-1] in _SUFFIXES or words[-1].isdigit()):
        words.pop()
    if not words or words[-1] in _PLACES or (words[0] in _SWITCHES and len(words) > 1 and words[-1] == "token"):
        return Grade.NOTHING
    last, before, option = words[-1], words[-2] if len(words) > 1 else "", name.startswith("-")
    if _SECRETS & set(words) or (before == "connection" and last == "string"):
        return Grade.SURE
    if last == "token":
        known = before in _OF_TOKENS or (option and not before)
        return Grade.NOTHING if before in _NO_TOKENS else Grade.SURE if known else Grade.LIKELY
    if last == "key" and before in _NO_KEYS:
        return Grade.NOTHING
    if last == "key" or (last == "keys" and before in ("api", "access", "secret", "private", "account")):
        return Grade.SURE if before in _OF_KEYS else Grade.LIKELY if option and not before else Grade.MAYBE
    if last == "pass" or last.endswith(("token", "apikey", "password", "passwd", "secret")):
        return Grade.SURE if before in _OF_PASS or last != "pass" else Grade.LIKELY
    if last == "pat":
        return Grade.SURE if before in _MAKERS else Grade.NOTHING
    if last in ("session", "signature", "sessionid"):
        return Grade.MAYBE
    return Grade.LIKELY if last == "auth" else Grade.NOTHING


# ----------------------------------------------------------------------------------------------- values

_NO_VALUES = frozenset({"", "none", "null", "nil", "true", "false", "yes", "no", "on", "off", "auto", "default"})
_ANNOTATIONS = frozenset({"str", "bytes", "int", "bool", "any", "optional", "union", "callable", "secretstr"})
_CODE = r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*"
_OBJECTS = ("self.", "args.", "cfg.", "config.", "conf.", "opt.", "opts.", "settings.", "os.", "kwargs.", "options.")


def hides(grade: Grade, value: str, *, bare: bool) -> bool:
    """Whether a value is to be hidden, given what its name says. `bare`: without quotes, so that it may be code."""
    plain = value.strip()
    if plain.lower() in _NO_VALUES or plain.rstrip("]") == REDACTED[:-1] or plain.startswith("$"):
        return False
    if (plain[0], plain[-1]) in (("<", ">"), ("{", "}")) or not plain.strip("*.…([{}])"):
        return False
    if bare and _is_code(plain):
        return False
    match grade:
        case Grade.SURE:
            return True
        case Grade.LIKELY:
            return not _is_plain(plain)
        case Grade.MAYBE:
            return is_made_up(plain)
        case _:
            return False


def _is_code(value: str) -> bool:
    """An expression of Python's in place of a value: `os.environ[`, `get_token()`, `hf_token`, `Optional[str]`."""
    if value.rstrip(",;:)]}").lower() in _ANNOTATIONS | _NO_VALUES:
        return True
    called = re.match(rf"{_CODE}[(\[]", value)
    if called is not None and (value[-1] in "([{" or ")" in value or "]" in value):
        return True
    if re.fullmatch(_CODE, value.rstrip(",;)]}")) is None or any(char.isdigit() for char in value):
        return False
    if value.startswith(_OBJECTS):
        return True
    return (value.islower() or value.isupper()) and grade_of(value.rstrip(",;)]}")) is not Grade.NOTHING


def _is_plain(value: str) -> bool:
    """A number, a path, a URL, a file's name, words: nothing that anybody would take for a secret."""
    if len(value) < 6 or re.fullmatch(r"[\d.,:eE+\-]{1,14}|(?:bf|fp|tf|int|uint)\d{1,2}[\w\-]*", value):
        return True
    if "://" in value or value.startswith(("/", "./", "../", "~")) or re.search(r"\.[a-z]{2,5}\Z", value):
        return True
    return len(value) < 20 and re.fullmatch(r"(?:[A-Za-z][a-z]*)?(?:[ _./:\-](?:[A-Za-z][a-z]*)?)*", value) is not None


def is_made_up(value: str) -> bool:
    """Random by its look: long, and letters and digits follow each other without order."""
    return len(value) >= 12 and re.search(r"[\s/]", value) is None and changes(value) >= max(5, len(value) // 4)
