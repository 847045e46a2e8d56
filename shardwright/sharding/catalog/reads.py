"""What daemons read from the catalog, as generators that yield reads and are sent their results.

No I/O: the caller of a generator sends each `CatalogRead` to a config server and sends back the raw documents of the
whole cursor; the generator's return value is the result. The reads carry their own read concern, and work against a
config server of MongoDB 6.0 as well.
"""

from collections.abc import Generator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from bson.timestamp import Timestamp

from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.sharding.catalog.database_entry import DatabaseEntry
from shardwright.sharding.catalog.settings import CHUNK_SIZE_ID, ChunkSizeSettings
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.chunks import ChunkPlacement
from shardwright.sharding.refined_key import refined_placement
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.signing_keys import KEYS_COLLECTION, KEYS_DB, PURPOSE, SigningKey, SigningKeys
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.rawbson import decode_document

CONFIG: Final = "config"

ROUTING_READS_MAX: Final = 3
"""How often a collection and its chunks are read while they do not fit together, before an error is raised."""

# A document of one field "chunks": its length, a type byte and the name come before the chunk, a null byte after it.
_CHUNK_PREFIX: Final = b"\x03chunks\0"
_CHUNK_START: Final = 4 + len(_CHUNK_PREFIX)


class CatalogIsOlderError(CommandError):
    """The config servers have an older state of a collection than one that was read before."""


class CatalogRead(NamedTuple):
    """One read of the catalog: a command that opens a cursor, and the database to send it to."""

    db: str
    command: dict[str, Any]


Result = TypeVar("Result")
CatalogReads: TypeAlias = Generator[CatalogRead, list[bytes], Result]


def read_routing(namespace: str, known: RoutingTable | None = None) -> CatalogReads[RoutingTable | None]:
    """The routing table of a collection, None when it is not sharded.

    Collection and chunks are read in one snapshot. Given the ``known`` table, only the chunks that changed
    since are read, and the new table shares the others with it; if nothing changed, ``known`` itself is returned.
    Placement never goes backwards: a config server that has an older state is asked again.

    Raises:
        CommandError: ConflictingOperationInProgress, after `ROUTING_READS_MAX` reads the result does not fit together,
            or (`CatalogIsOlderError`) is older than ``known``.
    """
    newest = known
    for attempt in range(1, ROUTING_READS_MAX + 1):
        documents = yield _routing_read(namespace, known)
        if not documents:
            return None
        try:
            return _not_older(_routing_table(documents, known), newest)
        except CommandError as error:
            if error.code != ErrorCode.ConflictingOperationInProgress or attempt == ROUTING_READS_MAX:
                raise
            # Perhaps the changes do not fit the table they were read for: the next read is of all chunks.
            known = None
    raise AssertionError("unreachable")


def _routing_table(documents: list[bytes], known: RoutingTable | None) -> RoutingTable:
    entry = CollectionEntry.from_document(_decode(documents[0]))
    collection = entry.sharded_collection()
    chunks = (ChunkPlacement.from_raw(_chunk_in(document)) for document in documents[1:])
    if entry.refined_from is not None:
        chunks = (refined_placement(chunk, entry.key) for chunk in chunks)
    if known is None or known.collection.timestamp != collection.timestamp:
        return RoutingTable.build(collection, chunks)
    read = list(chunks)
    if not read:  # not even the chunk that gave the known table its version
        raise CommandError(ErrorCode.ConflictingOperationInProgress, f"No chunks of {collection.namespace} were found")
    changed = [chunk for chunk in read if chunk.version > known.collection_version.packed]
    if not changed and collection == known.collection:
        return known
    return known.with_changed_chunks(changed, collection)


def _not_older(table: RoutingTable, newest: RoutingTable | None) -> RoutingTable:
    """The table, provided that it is not older than another one.

    Raises:
        CatalogIsOlderError: it is older.
    """
    if newest is not None and _age(table) < _age(newest):
        raise CatalogIsOlderError(
            ErrorCode.ConflictingOperationInProgress,
            f"{table.collection.namespace} was read at version {table.collection_version}, which is older than the "
            f"known {newest.collection_version}",
        )
    return table


def _age(table: RoutingTable) -> tuple[Timestamp, int]:
    return table.collection.timestamp, table.collection_version.packed


def read_database(db: str) -> CatalogReads[DatabaseEntry | None]:
    """The entry of a database, None when the catalog has none."""
    documents = yield _find("databases", {"_id": db})
    return DatabaseEntry.from_document(_decode(documents[0])) if documents else None


def read_shards() -> CatalogReads[list[ShardEntry]]:
    """All shards, ordered by name."""
    documents = yield _find("shards", {}, sort={"_id": 1})
    return [ShardEntry.from_document(_decode(document)) for document in documents]


def read_chunk_size() -> CatalogReads[int]:
    """The largest range in bytes that is moved at once, for collections without a chunk size of their own.

    Raises:
        CommandError: TypeMismatch or BadValue, the setting is malformed.
    """
    documents = yield _find("settings", {"_id": CHUNK_SIZE_ID})
    return ChunkSizeSettings.from_document(_decode(documents[0]) if documents else None).value_bytes


def read_signing_keys() -> CatalogReads[SigningKeys]:
    """The keys that sign cluster times."""
    command = {"find": KEYS_COLLECTION, "filter": {"purpose": PURPOSE}, "readConcern": {"level": "majority"}}
    documents = yield CatalogRead(KEYS_DB, command)
    return SigningKeys(SigningKey.from_document(decode_document(document)) for document in documents)


def find_in_catalog(
    collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
) -> CatalogReads[list[bytes]]:
    """The raw documents of a collection of the config database that match a query."""
    return (yield _find(collection, query, **({} if sort is None else {"sort": sort})))


def aggregate_in_catalog(collection: str, pipeline: Sequence[Mapping[str, Any]]) -> CatalogReads[list[bytes]]:
    """The raw documents that an aggregation of a collection of the config database returns."""
    command = {"aggregate": collection, "pipeline": pipeline, "cursor": {}, "readConcern": {"level": "majority"}}
    return (yield CatalogRead(CONFIG, command))


def find_in_snapshot(
    collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int]
) -> CatalogReads[list[bytes]]:
    """As `find_in_catalog`, with all documents from one point in time, however many they are."""
    snapshot = {"readConcern": {"level": "snapshot"}}
    return (yield CatalogRead(CONFIG, {"find": collection, "filter": query, "sort": sort, **snapshot}))


def _routing_read(namespace: str, known: RoutingTable | None) -> CatalogRead:
    """The collection's entry followed by its chunks, each as the field ``chunks`` of a document of its own.

    One aggregation is one snapshot, so a change committed in the meantime is seen in both or in neither.
    """
    pipeline: list[dict[str, Any]] = [{"$match": {"_id": namespace}}]
    incarnation: dict[str, Any] = {"_id": namespace}
    if known is not None:
        since = known.collection.timestamp
        pipeline.append(
            _chunks_of({**incarnation, "timestamp": since}, {"lastmod": {"$gte": known.collection_version.lastmod}})
        )
        incarnation["timestamp"] = {"$ne": since}
    pipeline.append(_chunks_of(incarnation, {}))
    command = {
        "aggregate": "collections",
        "pipeline": pipeline,
        "cursor": {},
        "readConcern": {"level": "snapshot"},
    }
    return CatalogRead(CONFIG, command)


def _chunks_of(collection: dict[str, Any], chunks: dict[str, Any]) -> dict[str, Any]:
    """The stage that adds the chunks of a collection if its entry still matches."""
    same_uuid = {"$expr": {"$eq": ["$uuid", "$$uuid"]}}
    lookup = {
        "from": "chunks",
        "as": "chunks",
        "let": {"uuid": "$uuid"},
        "pipeline": [{"$match": {**same_uuid, **chunks}}],
    }
    return {
        "$unionWith": {
            "coll": "collections",
            "pipeline": [
                {"$match": collection},
                {"$lookup": lookup},
                {"$unwind": "$chunks"},
                {"$project": {"_id": False, "chunks": True}},
            ],
        }
    }


def _find(collection: str, query: Mapping[str, Any], **options: Any) -> CatalogRead:  # noqa: ANN401 - options of find
    return CatalogRead(CONFIG, {"find": collection, "filter": query, **options, "readConcern": {"level": "majority"}})


def _chunk_in(document: bytes) -> bytes:
    if not document.startswith(_CHUNK_PREFIX, 4):
        raise RemoteProtocolError("a routing read returned something that is not a chunk")
    return document[_CHUNK_START:-1]


def _decode(document: bytes) -> dict[str, Any]:
    return decode_document(document)
