"""Documents that an ``insert`` would change: mongod replaces a top-level ``Timestamp(0, 0)`` by the present.

A document may contain one nevertheless, since updates can set it, and then its copy on another shard needs it too.
(mongod does not replace it in ``_id`` or below the top level.)
"""

from collections.abc import Sequence
from typing import Any, Final

from shardwright.wire.rawbson import TIMESTAMP, raw_document, spans, wrap_value

_EMPTY: Final = bytes(8)
_SIGN: Final = b"\0" + _EMPTY
"""The end of a name and an empty timestamp, or possibly something else. Documents without it need no closer look."""


def restoring_updates(documents: Sequence[bytes]) -> list[dict[str, Any]]:
    """The statements of an ``update`` that restore inserted documents; mostly none."""
    return [_verbatim(document) for document in documents if has_empty_timestamp(document)]


def has_empty_timestamp(document: bytes) -> bool:
    """Whether it is such a document."""
    return _SIGN in document and any(
        kind == TIMESTAMP and name != b"_id" and document[start:end] == _EMPTY
        for name, (kind, _, start, end) in spans(document)
    )


def _verbatim(document: bytes) -> dict[str, Any]:
    """The statement that restores a document, by an expression, in which mongod does not replace timestamps."""
    kind, _, start, end = next(span for name, span in spans(document) if name == b"_id")
    identity = raw_document(wrap_value(kind, document[start:end], b"$eq"))
    return {"q": {"_id": identity}, "u": [{"$replaceWith": {"$literal": raw_document(document)}}]}
