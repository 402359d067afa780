"""A message counts once, in its direction, on its connection, with the job's key."""

from __future__ import annotations

import pytest

from ddp_run.values.sealed import Seal, session_key

KEY = session_key(b"secret", "challenge", "nonce")


def pair(direction: str = "to server", key: bytes = KEY) -> tuple[Seal, Seal]:
    return Seal(KEY, "to server"), Seal(key, direction)


def test_what_is_sealed_can_be_opened_in_order() -> None:
    sender, receiver = pair()
    lines = [sender.close({"number": number, "text": "line\nfeed ä"}) for number in range(3)]
    assert [receiver.open(line)["number"] for line in lines] == [0, 1, 2]
    assert all(line.count(b"\n") == 1 for line in lines)


@pytest.mark.parametrize(
    "key",
    [
        session_key(b"other", "challenge", "nonce"),
        session_key(b"secret", "other", "nonce"),
        session_key(b"secret", "challenge", "other"),
    ],
    ids=["another job", "another connection", "another connection of the client"],
)
def test_another_key_does_not_fit(key: bytes) -> None:
    sender, receiver = pair(key=key)
    with pytest.raises(ValueError, match="does not fit"):
        receiver.open(sender.close({}))


def test_a_message_sent_back_repeated_left_out_or_changed_does_not_fit() -> None:
    sender, receiver = pair("to client")
    with pytest.raises(ValueError, match="does not fit"):
        receiver.open(sender.close({}))
    sender, receiver = pair()
    first = sender.close({"a": 1})
    assert receiver.open(first) == {"a": 1}
    with pytest.raises(ValueError, match="does not fit"):
        receiver.open(first)
    sender, receiver = pair()
    sender.close({})
    with pytest.raises(ValueError, match="does not fit"):
        receiver.open(sender.close({}))
    sender, receiver = pair()
    with pytest.raises(ValueError, match="does not fit"):
        receiver.open(sender.close({"code": 1}).replace(b"1}", b"0}"))


@pytest.mark.parametrize("line", [b"", b"GET / HTTP/1.1\n", b"\xff\xfe", b"0" * 64 + b" {}", b" "])
def test_what_is_no_message_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".+"):
        Seal(KEY, "to server").open(line)
