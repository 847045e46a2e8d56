"""Events about collections and databases rather than documents, without I/O.

What is done on each shard, to drop a sharded collection for example, is an event on each of them. One is enough for
clients: the one of the primary shard of the database, where a genuine cluster has it too.
"""

from typing import Final

from shardwright.wire.rawbson import OBJECT, STRING, decode_value, find

INVALIDATE: Final = "invalidate"
"""The last event of a stream whose collection or database is gone."""

CATALOG_EVENTS: Final = frozenset(
    {
        *("create", "createIndexes", "drop", "dropDatabase", "dropIndexes", INVALIDATE, "modify"),
        *("refineCollectionShardKey", "rename", "reshardCollection", "shardCollection"),
    }
)


def operation_type(event: bytes) -> str:
    """The ``operationType`` of a raw event, empty if it has none."""
    span = find(event, b"operationType")
    return str(decode_value(event, span)) if span is not None and span[0] == STRING else ""


def database_of(event: bytes) -> str:
    """The database that a raw event is about, empty if it is about none."""
    namespace = find(event, b"ns")
    if namespace is None or namespace[0] != OBJECT:
        return ""
    span = find(event, b"db", namespace[2])
    return str(decode_value(event, span)) if span is not None and span[0] == STRING else ""


def namespace_of(event: bytes) -> str:
    """``db.collection`` that a raw event is about, empty if it is not about a collection."""
    namespace = find(event, b"ns")
    if namespace is None or namespace[0] != OBJECT:
        return ""
    parts = [find(event, name, namespace[2]) for name in (b"db", b"coll")]
    if any(span is None or span[0] != STRING for span in parts):
        return ""
    return ".".join(str(decode_value(event, span)) for span in parts if span is not None)
