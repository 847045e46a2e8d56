"""Catalog reads of the daemons, as generators that yield reads and are sent their results.

No I/O. The caller of a generator sends each `CatalogRead` to a config server, passes the raw documents of the whole
cursor to its sink, and sends back the sink. The generator's return value is the result. The reads carry their own read
concern, and work against a config server of MongoDB 6.0 as well.

Reads are never older than the placement that a daemon has already seen. A config server that has just become primary
has all committed writes, but its commit point may lag. One that is cut off may still believe itself primary. Both
answer majority reads with an older state. So daemons keep the newest config time they have seen, and read after it.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar

from bson.timestamp import Timestamp

from shardwright.sharding import feature_version
from shardwright.sharding.catalog.documents import CollectionEntry, DatabaseEntry, ShardEntry
from shardwright.sharding.catalog.settings import CHUNK_SIZE_ID, ChunkSizeSettings
from shardwright.sharding.chunk_changes import refined_placement
from shardwright.sharding.chunks import ChunkPlacement, read_placements
from shardwright.sharding.clock import CONFIG_TIME, VectorClock, VectorTime
from shardwright.sharding.cluster_time import (
    KEYS_COLLECTION,
    KEYS_DB,
    PURPOSE,
    SigningKey,
    SigningKeys,
    unpack_timestamp,
)
from shardwright.sharding.routing_table import RoutingTable, RoutingTableBuilder
from shardwright.wire import rawbson
from shardwright.wire.cursor_batch import DocumentSink
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, RemoteProtocolError
from shardwright.wire.rawbson import decode_document

_OPERATION_TIME: Final = b"operationTime"

CONFIG: Final = "config"

ROUTING_READS_MAX: Final = 3
"""Number of attempts to read a collection and its chunks consistently, before an error is raised."""

CHANGED_CHUNKS_MAX: Final = 200_000
"""Most changed chunks that are laid over a known table, which blocks a daemon for about a second.

A table of all chunks is built batch by batch, while the daemon serves other requests.
"""

# A document of one field "chunks": its length, a type byte and the name precede the chunk, a null byte follows it.
_CHUNK_PREFIX: Final = b"\x03chunks\0"
_CHUNK_START: Final = 4 + len(_CHUNK_PREFIX)


class CatalogIsOlderError(CommandError):
    """A read of the config servers that returned an older state of a collection than an earlier read."""


class CatalogRead(NamedTuple):
    """One read of the catalog.

    Args:
        new_sink: creates the receiver of the documents, a new one for each attempt to read them.
        may_be_long: there may be millions of documents, so that only each batch has a time limit.
    """

    db: str
    command: dict[str, Any]
    new_sink: Callable[[], DocumentSink] = list
    may_be_long: bool = False


Result = TypeVar("Result")
CatalogReads: TypeAlias = Generator[CatalogRead, Any, Result]


def read_routing(namespace: str, known: RoutingTable | None = None) -> CatalogReads[RoutingTable | None]:
    """Read the routing table of a collection; None if it is not sharded.

    Collection and chunks are read in one snapshot. Given the ``known`` table, only the chunks that changed since are
    read, and the new table shares the others with it. If nothing changed, ``known`` itself is returned. Placement never
    goes backwards: a config server with an older state is read again.

    Raises:
        CommandError: ConflictingOperationInProgress, after `ROUTING_READS_MAX` reads the result is inconsistent, or
            (`CatalogIsOlderError`) older than ``known``.
    """
    newest = known
    for attempt in range(1, ROUTING_READS_MAX + 1):
        reply: _RoutingReply = yield _routing_read(namespace, known)
        try:
            table = reply.table()
            return table if table is None else _not_older(table, newest)
        except CommandError as error:
            if error.code != ErrorCode.ConflictingOperationInProgress or attempt == ROUTING_READS_MAX:
                raise
            # The changes do not fit the table they were read for, or are too many: the next read is of all chunks.
            known = None
    raise AssertionError("unreachable")


class _RoutingReply:
    """Sink of a routing read, for the entry of the collection and its chunks as they arrive.

    ``known`` is the table that the changes were read for, if there is one.
    """

    def __init__(self, known: RoutingTable | None) -> None:
        self._known = known
        self._entry: CollectionEntry | None = None
        self._changed: list[ChunkPlacement] = []
        self._has_too_many = False
        self._builder: RoutingTableBuilder | None = None

    def extend(self, documents: Iterable[bytes], /) -> None:
        """Add documents; `table` reports inconsistent chunks. A malformed document raises CommandError."""
        rest = iter(documents)
        entry = self._entry or self._take_entry(rest)
        if entry is not None:
            self._take_chunks(entry, read_placements(map(_checked, rest), _CHUNK_START, 1))

    def table(self) -> RoutingTable | None:
        """Build the table; None if the collection is not sharded.

        Raises ConflictingOperationInProgress if the chunks are inconsistent.
        """
        if self._entry is None:
            return None
        if self._builder is not None:
            return self._builder.finish()
        known, collection = self._known, self._entry.sharded_collection()
        if self._has_too_many:
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress, f"Too many chunks of {collection.namespace} have changed"
            )
        assert known is not None, "there is either a table or a builder"
        if not self._changed:  # not even the chunk with the known table's version
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress, f"No chunks of {collection.namespace} were found"
            )
        changed = [chunk for chunk in self._changed if chunk.version > known.collection_version.packed]
        if not changed and collection == known.collection:
            return known
        return known.with_changed_chunks(changed, collection)

    def _take_entry(self, documents: Iterator[bytes]) -> CollectionEntry | None:
        first = next(documents, None)
        if first is None:
            return None
        self._entry = CollectionEntry.from_document(_decode(first))
        collection = self._entry.sharded_collection()
        if self._known is None or self._known.collection.timestamp != collection.timestamp:
            self._builder = RoutingTableBuilder(collection)
        return self._entry

    def _take_chunks(self, entry: CollectionEntry, chunks: Iterator[ChunkPlacement]) -> None:
        if entry.refined_from is not None:
            chunks = (refined_placement(chunk, entry.key) for chunk in chunks)
        if self._builder is not None:
            self._builder.add(chunks)
        elif not self._has_too_many:
            self._changed += chunks
            if len(self._changed) > CHANGED_CHUNKS_MAX:
                self._has_too_many = True
                self._changed.clear()


def _not_older(table: RoutingTable, newest: RoutingTable | None) -> RoutingTable:
    """Return the table; raise CatalogIsOlderError if it is older than ``newest``."""
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
    """Read the entry of a database; None if the catalog has none."""
    documents = yield _find("databases", {"_id": db})
    return DatabaseEntry.from_document(_decode(documents[0])) if documents else None


def read_shards() -> CatalogReads[list[ShardEntry]]:
    """Read all shards, ordered by name."""
    documents = yield _find("shards", {}, sort={"_id": 1})
    return [ShardEntry.from_document(_decode(document)) for document in documents]


def read_chunk_size() -> CatalogReads[int]:
    """Read the largest range in bytes that is moved at once, for collections without a chunk size of their own.

    Raises TypeMismatch or BadValue if the setting is malformed.
    """
    documents = yield _find("settings", {"_id": CHUNK_SIZE_ID})
    return ChunkSizeSettings.from_document(_decode(documents[0]) if documents else None).value_bytes


def read_feature_version() -> CatalogReads[int]:
    """Read the feature version of the cluster, see `sharding.feature_version.version_of`."""
    documents = yield CatalogRead("admin", feature_version.query())
    return feature_version.version_of(_decode(documents[0]) if documents else None)


def read_signing_keys() -> CatalogReads[SigningKeys]:
    """Read the keys that sign cluster times."""
    command = {"find": KEYS_COLLECTION, "filter": {"purpose": PURPOSE}, "readConcern": {"level": "majority"}}
    documents = yield CatalogRead(KEYS_DB, command)
    return SigningKeys(SigningKey.from_document(decode_document(document)) for document in documents)


def find_in_catalog(
    collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
) -> CatalogReads[list[bytes]]:
    """Find the raw documents of a collection of the config database that match a query."""
    documents: list[bytes] = yield _find(collection, query, **({} if sort is None else {"sort": sort}))
    return documents


def aggregate_in_catalog(collection: str, pipeline: Sequence[Mapping[str, Any]]) -> CatalogReads[list[bytes]]:
    """Aggregate a collection of the config database; return raw documents."""
    command = {"aggregate": collection, "pipeline": pipeline, "cursor": {}, "readConcern": {"level": "majority"}}
    documents: list[bytes] = yield CatalogRead(CONFIG, command)
    return documents


def find_in_snapshot(
    collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int]
) -> CatalogReads[list[bytes]]:
    """Find documents like `find_in_catalog`, all from one point in time, however many they are."""
    snapshot = {"readConcern": {"level": "snapshot"}}
    documents: list[bytes] = yield CatalogRead(CONFIG, {"find": collection, "filter": query, "sort": sort, **snapshot})
    return documents


def _routing_read(namespace: str, known: RoutingTable | None) -> CatalogRead:
    """Build the read of a collection's entry followed by its chunks, each as the field ``chunks`` of its own document.

    One aggregation is one snapshot, so a concurrent change is seen in both or in neither.
    """
    pipeline: list[dict[str, Any]] = [{"$match": {"_id": namespace}}]
    incarnation: dict[str, Any] = {"_id": namespace}
    if known is not None:
        since = known.collection.timestamp
        pipeline.append(
            _chunks_of({**incarnation, "timestamp": since}, {"lastmod": {"$gte": known.collection_version.lastmod}})
        )
        incarnation["timestamp"] = {"$ne": since}
    # In the order of an index, so that the table can be built as they arrive.
    pipeline.append(_chunks_of(incarnation, {}, {"$sort": {"min": 1}}))
    command = {
        "aggregate": "collections",
        "pipeline": pipeline,
        "cursor": {},
        "readConcern": {"level": "snapshot"},
    }
    return CatalogRead(CONFIG, command, partial(_RoutingReply, known), may_be_long=True)


def _chunks_of(collection: dict[str, Any], chunks: dict[str, Any], *stages: dict[str, Any]) -> dict[str, Any]:
    """Build the stage that adds a collection's chunks, after ``stages``, if its entry still matches."""
    same_uuid = {"$expr": {"$eq": ["$uuid", "$$uuid"]}}
    lookup = {
        "from": "chunks",
        "as": "chunks",
        "let": {"uuid": "$uuid"},
        "pipeline": [{"$match": {**same_uuid, **chunks}}, *stages],
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


def _checked(document: bytes) -> bytes:
    if not document.startswith(_CHUNK_PREFIX, 4):
        raise RemoteProtocolError("a routing read returned something that is not a chunk")
    return document


def _decode(document: bytes) -> dict[str, Any]:
    return decode_document(document)


def read_after(read: CatalogRead, time: VectorTime, milliseconds_max: int, *, as_of: int = 0) -> CatalogRead:
    """Make a read at or after the known config time; a config server that has not reached it waits.

    Args:
        milliseconds_max: total time limit for the config server.
        as_of: a packed cluster time that the read must not be older than either.
    """
    after = max(time.config_time, as_of)
    # A server refuses to wait for a time later than any it has seen.
    command = {**read.command, "maxTimeMS": milliseconds_max, **time.joined(VectorTime(after)).gossip()}
    if after:
        command["readConcern"] = {**command["readConcern"], "afterClusterTime": unpack_timestamp(after)}
    return read._replace(command=command)


def observe_read(clock: VectorClock, body: bytes, fields: Mapping[bytes, rawbson.Span]) -> None:
    """Advance the config time to the catalog time of a majority or snapshot read, given its reply.

    Genuine config servers report it. Otherwise it is the operation time, which for such reads is majority committed.
    Raises as `VectorTime.from_message`.
    """
    clock.observe(body, fields)
    span = fields.get(_OPERATION_TIME)
    if CONFIG_TIME not in fields and span is not None and span[0] == rawbson.TIMESTAMP:
        advance_config_time(clock, int.from_bytes(body[span[2] : span[3]], "little"))


def observe_command(clock: VectorClock, reply: Mapping[str, Any]) -> None:
    """Advance to the times in a config server's reply to a command, if it has any."""
    clock.advance(VectorTime.from_gossip(reply))


def advance_config_time(clock: VectorClock, config_time: int) -> None:
    """Advance to a packed config time, and the cluster time with it, which is never behind."""
    if config_time > clock.time.config_time:
        clock.advance(VectorTime(config_time, config_time))
