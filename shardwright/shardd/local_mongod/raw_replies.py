"""Replies of mongod and of other shards, looked at without decoding the documents in them."""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, Span, decode_document, find

_OK: Final = b"\0\0\0\0\0\0\xf0?"


def is_ok(reply: bytes) -> bool:
    """Whether a command succeeded."""
    ok = find(reply, b"ok")
    return ok is not None and reply[ok[2] : ok[3]] == _OK


def check_reply(reply: bytes) -> None:
    """Raise what a reply says has failed: the command, one of its items, or its write concern.

    Raises:
        CommandError: that.
    """
    if is_ok(reply) and find(reply, b"writeErrors") is None and find(reply, b"writeConcernError") is None:
        return
    decoded = decode_document(reply)
    if not decoded.get("ok"):
        raise CommandError.from_reply(decoded)
    for failure in (*decoded.get("writeErrors", ()), decoded.get("writeConcernError")):
        if failure is not None:
            raise CommandError.from_reply(failure)


def required_array(reply: bytes, name: bytes) -> Span:
    """Where an array of a reply is.

    Raises:
        CommandError: FailedToParse, there is none.
    """
    span = find(reply, name)
    if span is None or span[0] != ARRAY:
        raise CommandError(ErrorCode.FailedToParse, f"a reply without the array '{name.decode()}'")
    return span
