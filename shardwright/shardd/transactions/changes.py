"""Whether a statement of a transaction has changed anything, as far as its reply says. Pure.

A genuine shard looks at the operations that the transaction has collected. The reply of a findAndModify does not
distinguish an update that changed nothing, so that counts as a change: the shard then takes part in the commit as one
that has written.
"""

from collections.abc import Callable, Mapping
from typing import Final

from shardwright.wire.rawbson import Span, decode_value, find, index

_COUNTED: Final[Mapping[str, tuple[bytes, ...]]] = {
    "insert": (b"n",),
    "update": (b"nModified", b"upserted"),
    "delete": (b"n",),
}
"""By write command: the fields of its reply that are not zero if it has changed something."""


def has_changed(command: str, reply: bytes) -> bool:
    """Whether a successful statement has changed something.

    Args:
        command: its name.
        reply: the body of the reply.
    """
    counted = _COUNTED.get(command)
    if counted is not None:
        return any(_is_counted(reply, find(reply, name)) for name in counted)
    is_change = _OTHER_CHANGES.get(command)
    return is_change is not None and is_change(reply, index(reply))


def _is_counted(reply: bytes, count: Span | None) -> bool:
    return count is not None and bool(decode_value(reply, count))


def _has_modified(reply: bytes, fields: Mapping[bytes, Span]) -> bool:
    outcome = fields.get(b"lastErrorObject")
    return outcome is not None and _is_counted(reply, find(reply, b"n", outcome[2]))


def _has_created_indexes(reply: bytes, fields: Mapping[bytes, Span]) -> bool:
    before, after = (fields.get(name) for name in (b"numIndexesBefore", b"numIndexesAfter"))
    if before is None or after is None or b"createdCollectionAutomatically" in fields:
        return True
    return bool(decode_value(reply, before) != decode_value(reply, after))


_OTHER_CHANGES: Final[Mapping[str, Callable[[bytes, Mapping[bytes, Span]], bool]]] = {
    "create": lambda reply, fields: True,
    "createIndexes": _has_created_indexes,
    "findAndModify": _has_modified,
    "findandmodify": _has_modified,
}
