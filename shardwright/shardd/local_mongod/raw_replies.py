"""Inspecting replies of mongod and of other shards without decoding the documents in them."""

from typing import Final

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, check_writes
from shardwright.wire.rawbson import ARRAY, Span, decode_document, find

_OK: Final = b"\0\0\0\0\0\0\xf0?"


def is_ok(reply: bytes) -> bool:
    """Whether a command succeeded."""
    ok = find(reply, b"ok")
    return ok is not None and reply[ok[2] : ok[3]] == _OK


def check_reply(reply: bytes) -> None:
    """Raise the error in a reply: that of the command, of one of its items, or of its write concern.

    Raises:
        CommandError: that error.
    """
    if is_ok(reply) and find(reply, b"writeErrors") is None and find(reply, b"writeConcernError") is None:
        return
    decoded = decode_document(reply)
    if not decoded.get("ok"):
        raise CommandError.from_reply(decoded)
    check_writes(decoded)


def required_array(reply: bytes, name: bytes) -> Span:
    """Find an array in a reply.

    Raises:
        CommandError: FailedToParse, there is none.
    """
    span = find(reply, name)
    if span is None or span[0] != ARRAY:
        raise CommandError(ErrorCode.FailedToParse, f"the reply has no array '{name.decode()}'")
    return span
