"""Documents that an ``insert`` would change: mongod puts the present in the place of a top-level ``Timestamp(0, 0)``.

A document may hold one all the same, since updates can set it; then its copy on another shard has to hold it, too. (In
``_id``, and below the top level, mongod leaves it alone.)
"""

from collections.abc import Sequence
from typing import Any, Final

from shardwright.wire.rawbson import TIMESTAMP, raw_document, spans, wrap_value

_EMPTY: Final = bytes(8)
_SIGN: Final = b"\0" + _EMPTY
"""The end of a name and an empty timestamp; or much else. What does not hold it need not be looked at any closer."""


def restoring_updates(documents: Sequence[bytes]) -> list[dict[str, Any]]:
    """The statements of an ``update`` that make inserted documents what they should be; mostly none."""
    return [_verbatim(document) for document in documents if _SIGN in document and _has_empty_timestamp(document)]


def _has_empty_timestamp(document: bytes) -> bool:
    return any(
        kind == TIMESTAMP and name != b"_id" and document[start:end] == _EMPTY
        for name, (kind, _, start, end) in spans(document)
    )


def _verbatim(document: bytes) -> dict[str, Any]:
    """Replaced by an expression, a document is not looked at for timestamps."""
    kind, _, start, end = next(span for name, span in spans(document) if name == b"_id")
    identity = raw_document(wrap_value(kind, document[start:end], b"$eq"))
    return {"q": {"_id": identity}, "u": [{"$replaceWith": {"$literal": raw_document(document)}}]}
