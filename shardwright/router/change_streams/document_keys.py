"""Completing ``documentKey`` by the shard key, without I/O.

The mongods know no shard key, so their events identify a document by ``_id`` alone. The fields of the shard key are
taken from the version of the document that an event carries; without one, ``documentKey`` stays as it is.
"""

from collections.abc import Mapping
from typing import Final

from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import OBJECT, Span, element, from_elements, index, with_value
from shardwright.wire.rawbson import find as find_element

_DOCUMENT_KEY: Final = b"documentKey"
_ID: Final = b"_id"
_VERSIONS: Final = (b"fullDocument", b"fullDocumentBeforeChange")


def with_shard_key(event: bytes, pattern: ShardKeyPattern) -> bytes:
    """The raw event with the shard key in its ``documentKey``; the same event if that is not known, or complete."""
    fields = index(event)
    key = fields.get(_DOCUMENT_KEY)
    document = _document(event, fields)
    if key is None or key[0] != OBJECT or document is None:
        return event
    identifier = find_element(event, _ID, key[2])
    if identifier is None or [each.name for each in pattern.fields] == [_ID]:
        return event
    return with_value(event, key, _key(document, pattern, event[identifier[1] : identifier[3]]))


def _document(event: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    for name in _VERSIONS:
        span = fields.get(name)
        if span is not None and span[0] == OBJECT:
            return event[span[2] : span[3]]
    return None


def _key(document: bytes, pattern: ShardKeyPattern, identifier: bytes) -> bytes:
    """The shard key as it is in a document, not hashed, then the ``_id`` unless it is part of that."""
    top_level = index(document)
    elements = []
    for each in pattern.fields:
        span = each.find_in(document, top_level)
        if span is not None:  # as in MongoDB, a missing field is left out
            elements.append(element(each.name, span[0], document[span[2] : span[3]]))
    if all(each.name != _ID for each in pattern.fields):
        elements.append(identifier)
    return from_elements(b"".join(elements))
