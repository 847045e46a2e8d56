"""What an update event says about the fields of a shard key that it has changed, without I/O."""

from collections.abc import Mapping
from typing import Final

from shardwright.sharding.shard_key_field import ShardKeyField, descend
from shardwright.wire.rawbson import ARRAY, EMPTY_DOCUMENT, OBJECT, Span, decode_value, index

_DESCRIPTION: Final = b"updateDescription"
_UPDATED: Final = b"updatedFields"
_REMOVED: Final = b"removedFields"

Value = tuple[int, bytes]
"""The type of a value, and its raw bytes."""


class UpdateDescription:
    """The ``updateDescription`` of an event; without one, nothing was updated.

    Args:
        event: the raw event.
        fields: its top-level fields.
    """

    def __init__(self, event: bytes, fields: Mapping[bytes, Span]) -> None:
        described = _embedded(event, fields.get(_DESCRIPTION))
        parts = index(described)
        removed = parts.get(_REMOVED)
        names = decode_value(described, removed) if removed is not None and removed[0] == ARRAY else ()
        self._removed = frozenset(str(name).encode() for name in names)
        self._new = _embedded(described, parts.get(_UPDATED))
        self._updated = index(self._new)

    def changes_part_of(self, field: ShardKeyField) -> bool:
        """Whether something inside the field's value was changed, so that the event does not have the whole value."""
        below = field.name + b"."
        return any(name.startswith(below) for name in (*self._updated, *self._removed))

    def changes(self, field: ShardKeyField) -> bool:
        """Whether the field, or one that it is in, was set or removed."""
        return any(path in self._updated or path in self._removed for path in field.ancestors)

    def new_value(self, field: ShardKeyField) -> Value | None:
        """The value of a field that was changed, None if it was removed."""
        for levels, path in enumerate(field.ancestors, 1):
            span = self._updated.get(path)
            if span is not None:
                found = descend(self._new, span, field.path[levels:])
                return None if found is None else (found[0], self._new[found[2] : found[3]])
        return None


def _embedded(document: bytes, span: Span | None) -> bytes:
    return document[span[2] : span[3]] if span is not None and span[0] == OBJECT else EMPTY_DOCUMENT
