"""Completing ``documentKey`` by the shard key, without I/O.

The mongods know no shard key, so their events identify a document by ``_id`` alone. The fields of the shard key are
taken from a version of the document: the one that the event carries, or else the one from before the change with what
the event says was changed. Without any, ``documentKey`` stays as it is.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from shardwright.router.change_streams.update_description import UpdateDescription, Value
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.sharding.shard_key_field import ShardKeyField
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, Span, element, from_elements, index, with_value

_DOCUMENT_KEY: Final = b"documentKey"
_ID: Final = b"_id"
_PRESENT: Final = b"fullDocument"
_BEFORE: Final = b"fullDocumentBeforeChange"

Values = Mapping[bytes, Value | None]
"""The fields of a shard key by name, None for one that the document does not have."""


def lacks_shard_key(event: bytes, pattern: ShardKeyPattern) -> bool:
    """Whether the raw event has neither the shard key in its ``documentKey``, nor a version of the document."""
    fields = index(event)
    key = fields.get(_DOCUMENT_KEY)
    if key is None or key[0] != OBJECT or _is_complete(event, key, pattern):
        return False
    return _embedded(event, fields.get(_PRESENT)) is None and _embedded(event, fields.get(_BEFORE)) is None


def with_shard_key(event: bytes, pattern: ShardKeyPattern, pre_image: bytes | None = None) -> bytes:
    """The raw event with the shard key in its ``documentKey``; the same event if that is not known, or complete.

    Args:
        event: the event.
        pattern: the shard key.
        pre_image: the raw document from before the change, or as much of it as the shard key needs; None if it is not
            known otherwise than by the event.
    """
    fields = index(event)
    key = fields.get(_DOCUMENT_KEY)
    if key is None or key[0] != OBJECT or _is_complete(event, key, pattern):
        return event
    present, before = _embedded(event, fields.get(_PRESENT)), _embedded(event, fields.get(_BEFORE)) or pre_image
    values: Values | None = None
    try:
        if present is not None:
            values = _values(present, pattern)
        elif before is not None:
            values = _updated_values(before, pattern, UpdateDescription(event, fields))
    except CommandError:
        return event  # an array, from before the collection had this shard key
    return event if values is None else with_value(event, key, _key(values, event, key))


def _is_complete(event: bytes, key: Span, pattern: ShardKeyPattern) -> bool:
    """Whether a ``documentKey`` has the shard key; one without ``_id`` is none that can be completed."""
    present = index(event, key[2])
    return _ID not in present or all(each.name in present for each in pattern.fields)


def _embedded(event: bytes, span: Span | None) -> bytes | None:
    return event[span[2] : span[3]] if span is not None and span[0] == OBJECT else None


def _values(document: bytes, pattern: ShardKeyPattern) -> Values:
    """The fields of the shard key as they are in a document, not hashed.

    Raises:
        CommandError: ShardKeyNotFound, one is an array.
    """
    top_level = index(document)
    return {each.name: _value(document, each, top_level) for each in pattern.fields}


def _value(document: bytes, field: ShardKeyField, top_level: dict[bytes, Span]) -> Value | None:
    span = field.find_in(document, top_level)
    return None if span is None else (span[0], document[span[2] : span[3]])


def _updated_values(before: bytes, pattern: ShardKeyPattern, update: UpdateDescription) -> Values | None:
    """The fields of the shard key after an update, as in MongoDB; None if the event does not tell.

    Raises:
        CommandError: as `_values`.
    """
    if any(update.changes_part_of(each) for each in pattern.fields):
        return None
    changed = {each.name: update.new_value(each) for each in pattern.fields if update.changes(each)}
    return {**_values(before, pattern), **changed}


def _key(values: Values, event: bytes, key: Span) -> bytes:
    """The shard key without the fields that are missing, as in MongoDB, then the ``_id`` unless it is part of that."""
    present = index(event, key[2])
    return from_elements(b"".join(_elements(values, event, present[_ID])))


def _elements(values: Values, event: bytes, identifier: Span) -> Iterator[bytes]:
    for name, value in values.items():
        if value is not None:
            yield element(name, *value)
    if _ID not in values:
        yield event[identifier[1] : identifier[3]]
