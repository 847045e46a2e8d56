"""The catalog for the primary's operations: majority reads, transactions, cluster time, chunk counts, feature version.

The chunk counts are for the metrics (`ChunkCensus`). Every change of a collection's chunks raises its version, which
takes one look-up in an index. Only a collection with another version is counted again. Each count is followed by a much
longer pause, so the census costs the mongod at most about a hundredth of a core for any number of chunks.

The rules of the cluster's feature version are in `sharding.feature_version`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.configd.catalog.transactions import MAJORITY, Commands, Transaction, run_transaction
from shardwright.daemon.backoff import Backoff, until_done
from shardwright.daemon.metrics import Counter
from shardwright.daemon.process_environment import check_fitness
from shardwright.sharding.catalog.documents import ShardEntry
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.sharding.feature_version import INTERVAL_SECONDS, MALFORMED, query, recording, refusal, version_of
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.limits import write_batches
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.cursor import DecodedCursor

logger = get_logger("configd.catalog")

T = TypeVar("T")

DB: Final = "config"

_ADMIN: Final = "admin"

_REPLACEMENTS_MAX: Final = 10
"""Maximum attempts to write the first chunks of a collection."""


class Catalog:
    """The config database on the local mongod, which is primary.

    Reads and writes raise a CommandError if mongod refuses, and a BackendError if it does not answer. A write also
    raises a CommandError if it is not on a majority.

    Attributes:
        mongod: runs commands on it.
        conflicts: the number of repeated transactions after conflicts with other writes.
    """

    def __init__(self, mongod: Commands, cluster_id: ObjectId, conflicts: Counter | None = None) -> None:
        self.mongod = mongod
        self.cluster_id = cluster_id
        self.conflicts = conflicts or Counter()

    async def transaction(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """Run ``work`` and commit its writes on a majority, see `run_transaction`."""
        return await run_transaction(self.mongod, work, self.conflicts)

    async def find(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
    ) -> list[dict[str, Any]]:
        """Return the documents that match, with read concern majority."""
        command: dict[str, Any] = {"find": collection, "filter": query, "readConcern": {"level": "majority"}}
        if sort is not None:
            command["sort"] = sort
        return await DecodedCursor(self.mongod.command, DB, command).all_documents()

    async def find_some(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int], limit: int
    ) -> list[dict[str, Any]]:
        """Return at most ``limit`` documents that match."""
        command = {"find": collection, "filter": query, "sort": sort, "limit": limit}
        return await DecodedCursor(
            self.mongod.command, DB, {**command, "readConcern": {"level": "majority"}}
        ).all_documents()

    async def find_first(
        self,
        collection: str,
        query: Mapping[str, Any],
        *,
        sort: Mapping[str, int],
        **options: Any,  # noqa: ANN401 - options of find
    ) -> dict[str, Any] | None:
        """Return the first document that matches, or None."""
        command = {
            "find": collection,
            "filter": query,
            "sort": sort,
            "limit": 1,
            **options,
            "readConcern": {"level": "majority"},
        }
        documents = await DecodedCursor(self.mongod.command, DB, command).all_documents()
        return documents[0] if documents else None

    async def aggregate(
        self, collection: str, pipeline: Sequence[Mapping[str, Any]], *, hint: Mapping[str, int]
    ) -> list[dict[str, Any]]:
        """Return the results of a pipeline that reads a collection through one index."""
        command = {
            "aggregate": collection,
            "pipeline": list(pipeline),
            "hint": hint,
            "cursor": {},
            "readConcern": {"level": "majority"},
        }
        return await DecodedCursor(self.mongod.command, DB, command).all_documents()

    async def count(self, collection: str, query: Mapping[str, Any], **options: Any) -> Int64:  # noqa: ANN401 - options of count
        """Count the documents that match."""
        command = {"count": collection, "query": query, **options, "readConcern": {"level": "majority"}}
        reply = await self.mongod.command(DB, command)
        return Int64(reply["n"])

    async def find_by_id(self, collection: str, key: object) -> dict[str, Any] | None:
        """Return the document with the given ``_id``, or None."""
        documents = await self.find(collection, {"_id": key})
        return documents[0] if documents else None

    async def insert(self, collection: str, documents: Sequence[Mapping[str, Any]]) -> None:
        """Insert any number of documents that have no meaning until a transaction refers to them."""
        for batch in write_batches(documents):
            await self._write({"insert": collection, "documents": batch})

    async def delete(self, collection: str, query: Mapping[str, Any]) -> None:
        """Delete documents without references."""
        await self._write({"delete": collection, "deletes": [{"q": query, "limit": 0}]})

    async def replace_chunks(self, uuid: Binary, chunks: Sequence[Mapping[str, Any]]) -> None:
        """Write the first chunks of a collection without an entry, and delete those that an earlier attempt has left.

        mongod may still be inserting chunks for a process that was killed. Chunks have the same versions in both
        attempts, so one attempt soon fails. Deletion and insertion are repeated until exactly these chunks are there.

        Raises:
            CommandError: DuplicateKey, there are still other chunks after several attempts.
        """
        backoff = Backoff(first_seconds=0.1, seconds_max=1.0)
        for attempts_left in reversed(range(_REPLACEMENTS_MAX)):
            await self.delete("chunks", {"uuid": uuid})
            try:
                await self.insert("chunks", chunks)
                if await self.count("chunks", {"uuid": uuid}) == len(chunks):
                    return
                raise CommandError(ErrorCode.DuplicateKey, "another process is inserting chunks of the collection")
            except CommandError as error:
                if error.code != ErrorCode.DuplicateKey or not attempts_left:
                    raise
                logger.warning("Writing the chunks of a collection again", error=str(error))
            await backoff.pause()

    async def update(self, collection: str, statements: Sequence[Mapping[str, Any]]) -> None:
        """Run the statements of an update."""
        await self._write({"update": collection, "updates": statements})

    async def update_many(
        self, collection: str, query: Mapping[str, Any], update: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> None:
        """Update each matching document by itself; transactions that have read one of them start again."""
        await self._write({"update": collection, "updates": [{"q": query, "u": update, "multi": True}]})

    async def shards(self) -> list[ShardEntry]:
        """Return all shards, in the order of their names."""
        return [ShardEntry.from_document(document) for document in await self.find("shards", {}, sort={"_id": 1})]

    async def shard(self, shard_id: str) -> ShardEntry:
        """Return one shard; raises ShardNotFound."""
        document = await self.find_by_id("shards", shard_id)
        if document is None:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
        return ShardEntry.from_document(document)

    async def now(self, told: Mapping[str, Any] | None = None) -> Timestamp:
        """Return the cluster time, at least the ``$clusterTime`` in ``told``; later writes get a later one.

        So objects created in succession, with a write in between, get different timestamps.
        """
        gossip = {} if told is None else {CLUSTER_TIME.decode(): told}
        reply = await self.mongod.command("admin", {"ping": 1, **gossip})
        time: Timestamp = reply["$clusterTime"]["clusterTime"]
        return time

    async def snapshot_window_seconds(self) -> int:
        """Return the time for which mongod keeps the history of data, and configd the history of its placement."""
        return await self._parameter("minSnapshotHistoryWindowInSeconds")

    async def session_timeout_minutes(self) -> int:
        """Return the time after its last use at which a logical session expires."""
        return await self._parameter("localLogicalSessionTimeoutMinutes")

    async def _parameter(self, name: str) -> int:
        reply = await self.mongod.command("admin", {"getParameter": 1, name: 1})
        return int(reply[name])

    async def _write(self, command: Mapping[str, Any]) -> None:
        reply = await self.mongod.command(DB, {**command, "writeConcern": MAJORITY})
        check_writes(reply)


LOOK_SECONDS: Final = 30.0
"""Pause between two checks of all versions."""


PAUSE_FACTOR: Final = 100
"""Ratio of the pause after a count to the duration of the count."""


UNCHANGED_SECONDS_MAX: Final = 600.0
"""Maximum age of a count, even if the version is the same: the jumbo flag does not raise it."""


_BY_VERSION: Final = {"uuid": 1, "lastmod": 1}


_BY_SHARD: Final = {"uuid": 1, "shard": 1, "min": 1}


@dataclass(frozen=True, slots=True)
class _Count:
    version: object
    at: float
    chunks: dict[str, int]
    jumbo: dict[str, int]


@dataclass(slots=True)
class ChunkCensus:
    """The counts of one term, empty before the first count; ``draining`` has a flag for each shard."""

    draining: dict[str, bool] = field(default_factory=dict)
    _counts: dict[bytes, _Count] = field(default_factory=dict)

    @property
    def collections(self) -> int:
        """Number of sharded collections."""
        return len(self._counts)

    def chunks(self) -> dict[str, float]:
        """Count the chunks by shard."""
        return self._sums([each.chunks for each in self._counts.values()])

    def jumbo(self) -> dict[str, float]:
        """Count the chunks marked as jumbo, by shard."""
        return self._sums([each.jumbo for each in self._counts.values()])

    async def run(self, catalog: Catalog) -> None:
        """Count repeatedly until cancelled."""
        while True:
            try:
                await self.look(catalog)
            except (BackendError, CommandError) as error:
                logger.debug("Could not count chunks", error=str(error))
            await trio.sleep(LOOK_SECONDS)

    async def look(self, catalog: Catalog) -> None:
        """Count the collections that have changed; errors as `Catalog.find`."""
        self.draining = {shard.id: shard.is_draining for shard in await catalog.shards()}
        entries = await catalog.find("collections", {})
        uuids = [entry["uuid"] for entry in entries if isinstance(entry.get("uuid"), Binary)]
        for gone in self._counts.keys() - set(uuids):
            del self._counts[gone]
        for uuid in uuids:
            newest = await catalog.find_first(
                "chunks", {"uuid": uuid}, sort={"lastmod": -1}, hint=_BY_VERSION, projection={"_id": 0, "lastmod": 1}
            )
            version, now, known = newest and newest["lastmod"], trio.current_time(), self._counts.get(uuid)
            if known is None or known.version != version or now - known.at > UNCHANGED_SECONDS_MAX:
                self._counts[uuid] = await _count(catalog, uuid, version)
                await trio.sleep(PAUSE_FACTOR * (trio.current_time() - now))

    def _sums(self, parts: list[dict[str, int]]) -> dict[str, float]:
        sums: dict[str, float] = dict.fromkeys(self.draining, 0)
        for part in parts:
            for shard, number in part.items():
                sums[shard] = sums.get(shard, 0) + number
        return sums


async def _count(catalog: Catalog, uuid: Binary, version: object) -> _Count:
    jumbo: dict[str, Any] = {"$sum": {"$cond": ["$jumbo", 1, 0]}}
    stages: list[dict[str, Any]] = [
        {"$match": {"uuid": uuid}},
        {"$group": {"_id": "$shard", "chunks": {"$sum": 1}, "jumbo": jumbo}},
    ]
    groups = await catalog.aggregate("chunks", stages, hint=_BY_SHARD)
    return _Count(
        version,
        trio.current_time(),
        {group["_id"]: int(group["chunks"]) for group in groups},
        {group["_id"]: int(group["jumbo"]) for group in groups},
    )


async def read_feature_version(mongod: Commands) -> int:
    """Read the cluster's feature version on the primary, for a command.

    Raises:
        CommandError: mongod refuses, or the document is malformed; IncompatibleServerVersion, this daemon does not
            support the version, and `follow_feature_version` ends it soon.
        BackendError: mongod does not answer.
    """
    version = await _read(mongod, query("local"))
    reason = refusal(version)
    if reason is not None:
        raise CommandError(ErrorCode.IncompatibleServerVersion, reason)
    return version


async def check_feature_version(mongod: Commands) -> None:
    """Check the version on a new primary; as `read_feature_version`, but raise UnfitClusterError to end this daemon."""
    check_fitness(refusal(await _read(mongod, query("local"))))


async def write_feature_version(mongod: Commands, version: int) -> None:
    """Raise the cluster's feature version on a majority; errors as writes of `Catalog`."""
    check_writes(await mongod.command(_ADMIN, recording(version)))


async def follow_feature_version(mongod: Commands) -> None:
    """Check the version at each interval, whatever the role of the mongod.

    Another primary may raise the version. Raises UnfitClusterError, which ends this daemon, if it is not supported.
    """
    question = {**query(), "$readPreference": {"mode": "nearest"}}

    async def read() -> int:
        return await _read(mongod, question)

    while True:
        # A new set may not have elected its first primary yet, or the mongod is still starting.
        version = await until_done(read, Backoff(first_seconds=0.1, seconds_max=5.0), _note_unread)
        check_fitness(refusal(version))
        await trio.sleep(INTERVAL_SECONDS)


async def _read(mongod: Commands, question: dict[str, Any]) -> int:
    found = (await mongod.command(_ADMIN, question))["cursor"]["firstBatch"]
    return version_of(found[0] if found else None)


def _note_unread(error: BackendError | CommandError, retry_seconds: float) -> None:
    log = logger.warning if isinstance(error, CommandError) and error.code in MALFORMED else logger.debug
    log("Could not read the feature version", error=str(error), retry_seconds=round(retry_seconds, 3))
