"""Operations that do not fit into one document, as ``$currentOp`` shows them all the same. Pure."""

from collections.abc import Sequence
from typing import Any, Final

from shardwright.sharding.bson_text import document_text
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import encode_document

SHOWN_CHARACTERS_MAX: Final = 1000
"""Longer commands are truncated if that is asked for, as in MongoDB."""

_BYTES_MAX: Final = BSON_OBJECT_BYTES_MAX - 1024 * 1024
"""The rest is for the stages that follow."""


def fitting(operations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The operations; if they are too large together, with truncated commands, without their comments.

    A mongos sends them in several batches. Here they are in one document, when they come from another process or when
    a shard runs further stages on them.
    """
    if sum(len(encode_document(each)) for each in operations) <= _BYTES_MAX:
        return list(operations)
    return [_truncated(each) for each in operations]


def beginning(body: bytes) -> str:
    """The text of which a truncated command consists."""
    text = document_text(body)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 3] + "..."


def _truncated(operation: dict[str, Any]) -> dict[str, Any]:
    shown = dict(operation)
    for name in ("command", "originatingCommand"):
        body = encode_document(shown[name]) if name in shown else b""
        if len(body) > SHOWN_CHARACTERS_MAX:
            shown[name] = {"$truncated": beginning(body)}
    return {**shown, "cursor": _truncated(shown["cursor"])} if "cursor" in shown else shown
