"""What must not reach files that ddp-run writes itself."""

from __future__ import annotations

import pytest

from ddp_run.redaction import REDACTED, is_secret, redact, redact_words


@pytest.mark.parametrize("name", ["WANDB_API_KEY", "HF_TOKEN", "--password", "aws_secret_access_key", "authToken"])
def test_names_of_secrets(name: str) -> None:
    assert is_secret(name)


@pytest.mark.parametrize("name", ["MASTER_ADDR", "--lr", "NCCL_DEBUG", "keyboard", "--monkey", "--author"])
def test_names_of_other_things(name: str) -> None:
    assert not is_secret(name)


def test_words_after_and_within_an_option() -> None:
    words = ("train.py", "--api-key", "k1", "--token=k2", "HF_TOKEN=k3", "--lr", "0.1", "--use-token", "--verbose")
    assert redact_words(words) == (
        "train.py", "--api-key", REDACTED, f"--token={REDACTED}", f"HF_TOKEN={REDACTED}", "--lr", "0.1",
        "--use-token", "--verbose",
    )  # fmt: skip


def test_values_that_say_what_they_are() -> None:
    assert redact("hf_" + "a" * 34) == REDACTED
    assert redact("https://me:pass@host/path") == f"https://{REDACTED}@host/path"
    assert redact("https://host/path?x=1") == "https://host/path?x=1"
