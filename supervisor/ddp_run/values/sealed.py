"""JSON messages with an HMAC (SHA-256), numbered, in one direction of one connection. Pure.

A line is `MAC JSON`. Each connection has its own key, made from the job's key and a random text from each side. So a
message recorded on another connection, or in the other direction, is refused. Both sides also count the messages and
never send the number. So one recorded on the same connection is refused too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any, final

LONGEST_LINE = 1 << 20
"""Bytes. A report with its quotations takes some 20 KiB."""


def session_key(job_key: bytes, challenge: str, nonce: str) -> bytes:
    """The key of one connection: `challenge` is the server's random text, `nonce` the client's."""
    return _mac(job_key, f"ddp-run 1\n{challenge}\n{nonce}".encode())


@final
class Seal:
    """One direction of a connection: one side seals with it, the other one opens with its own."""

    def __init__(self, key: bytes, direction: str) -> None:
        self._key, self._direction, self._number = key, direction.encode(), 0

    def close(self, message: Mapping[str, Any]) -> bytes:
        """The next line."""
        body = json.dumps(message, ensure_ascii=True, separators=(",", ":")).encode()
        return self._next(body).hex().encode() + b" " + body + b"\n"

    def open(self, line: bytes) -> dict[str, Any]:
        """The next message. Raises ValueError if the key differs, or a message was changed, repeated or left out.

        Half a surrogate pair, which no file and no terminal takes, becomes a question mark.
        """
        mac, _blank, body = line.rstrip(b"\n").partition(b" ")
        if not hmac.compare_digest(mac, self._next(body).hex().encode()):
            raise ValueError("the message does not fit the job's key")
        try:
            message = json.loads(body)
            if b"\\ud" in body.lower():
                message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
        except RecursionError as error:
            raise ValueError("no message") from error
        if not isinstance(message, dict):
            raise ValueError("no message")
        return message

    def _next(self, body: bytes) -> bytes:
        number, self._number = self._number, self._number + 1
        return _mac(self._key, self._direction + b"\n%d\n" % number + body)


def _mac(key: bytes, text: bytes) -> bytes:
    return hmac.new(key, text, hashlib.sha256).digest()
