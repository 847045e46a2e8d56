"""Events about collections and databases rather than documents. No I/O.

A change that every shard makes, for example the drop of a sharded collection, is an event on each of them. Clients
receive only the event of the database's primary shard, as in a genuine cluster. For changes of indexes and options, a
genuine cluster shows one event from each shard that owns a part of the collection.
"""

from functools import lru_cache
from typing import Final

from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_participation import is_temporary
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, STRING, decode_value, element, find, index

INVALIDATE: Final = "invalidate"
"""The last event of a stream whose collection or database is gone."""

CATALOG_EVENTS: Final = frozenset(
    {
        *("create", "createIndexes", "drop", "dropDatabase", "dropIndexes", INVALIDATE, "modify"),
        *("refineCollectionShardKey", "rename", "reshardCollection", "shardCollection"),
    }
)

OF_EACH_OWNER: Final = frozenset({"createIndexes", "dropIndexes", "modify"})
"""Catalog events that clients receive from every shard that owned a part of the collection."""

MODIFY: Final = "modify"
DESCRIPTION: Final = b"operationDescription"
_NO_DESCRIPTION: Final = element(DESCRIPTION, OBJECT, EMPTY_DOCUMENT)


def operation_type(event: bytes) -> str:
    """Return the ``operationType`` of a raw event, empty if it has none."""
    span = find(event, b"operationType")
    return str(decode_value(event, span)) if span is not None and span[0] == STRING else ""


def changes_nothing(event: bytes) -> bool:
    """Whether a raw event is about a ``collMod`` without effect, such as the marks of ``shardCollection``."""
    return _NO_DESCRIPTION in event and operation_type(event) == MODIFY


def database_of(event: bytes) -> str:
    """Return the database that a raw event is about, empty if it is about none."""
    namespace = find(event, b"ns")
    if namespace is None or namespace[0] != OBJECT:
        return ""
    span = find(event, b"db", namespace[2])
    return str(decode_value(event, span)) if span is not None and span[0] == STRING else ""


def namespace_of(event: bytes) -> str:
    """Return the full collection name that a raw event is about, empty if it is not about a collection."""
    span = find(event, b"ns")
    if span is None or span[0] != OBJECT:
        return ""
    return _joined(event[span[2] : span[3]])


def is_end_of_resharding(event: bytes) -> bool:
    """Whether an event is about a shard's temporary resharding collection, such as its rename at the end."""
    namespace = namespace_of(event)
    return bool(namespace) and is_temporary(Namespace.parse(namespace))


@lru_cache(maxsize=256)
def _joined(namespace: bytes) -> str:
    """Join an event's ``ns``. Most events of a stream are about few collections, so the result is cached."""
    fields = index(namespace)
    db, collection = fields.get(b"db"), fields.get(b"coll")
    if db is None or collection is None or db[0] != STRING or collection[0] != STRING:
        return ""
    return f"{decode_value(namespace, db)}.{decode_value(namespace, collection)}"
