"""The catalog for the primary's operations: majority reads, transactions, cluster time."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.configd.catalog.transactions import (
    MAJORITY,
    Commands,
    Transaction,
    run_transaction,
)
from shardwright.daemon.metrics import Counter
from shardwright.sharding.catalog.shard_entry import ShardEntry
from shardwright.sharding.clock import CLUSTER_TIME
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, check_writes
from shardwright.wire.transport.cursor import DecodedCursor
from shardwright.wire.write_batches import write_batches

T = TypeVar("T")

DB: Final = "config"


class Catalog:
    """The config database on the local mongod, which is primary.

    Attributes:
        mongod: runs commands on it.
        cluster_id: the identity of the cluster.
        conflicts: counts transactions that conflicted with other writes and were run again.
    """

    def __init__(self, mongod: Commands, cluster_id: ObjectId, conflicts: Counter | None = None) -> None:
        self.mongod = mongod
        self.cluster_id = cluster_id
        self.conflicts = conflicts or Counter()

    async def transaction(self, work: Callable[[Transaction], Awaitable[T]]) -> T:
        """The result of ``work``, committed on a majority; see `run_transaction`."""
        return await run_transaction(self.mongod, work, self.conflicts)

    async def find(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int] | None = None
    ) -> list[dict[str, Any]]:
        """The documents that match, with read concern majority.

        Raises:
            CommandError: mongod refused.
            BackendError: mongod does not answer.
        """
        command: dict[str, Any] = {"find": collection, "filter": query, "readConcern": {"level": "majority"}}
        if sort is not None:
            command["sort"] = sort
        return await DecodedCursor(self.mongod.command, DB, command).all_documents()

    async def find_some(
        self, collection: str, query: Mapping[str, Any], *, sort: Mapping[str, int], limit: int
    ) -> list[dict[str, Any]]:
        """The first documents that match, up to a number of them. Errors as `find`."""
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
        """The first document that matches; None if there is none. Errors as `find`."""
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
        """The results of a pipeline that reads a collection through one index. Errors as `find`."""
        command = {
            "aggregate": collection,
            "pipeline": list(pipeline),
            "hint": hint,
            "cursor": {},
            "readConcern": {"level": "majority"},
        }
        return await DecodedCursor(self.mongod.command, DB, command).all_documents()

    async def count(self, collection: str, query: Mapping[str, Any], **options: Any) -> Int64:  # noqa: ANN401 - options of count
        """The number of documents that match. Errors as `find`."""
        command = {"count": collection, "query": query, **options, "readConcern": {"level": "majority"}}
        reply = await self.mongod.command(DB, command)
        return Int64(reply["n"])

    async def find_by_id(self, collection: str, key: object) -> dict[str, Any] | None:
        """The document with the given ``_id``; None if there is none. Errors as `find`."""
        documents = await self.find(collection, {"_id": key})
        return documents[0] if documents else None

    async def insert(self, collection: str, documents: Sequence[Mapping[str, Any]]) -> None:
        """Insert any number of documents that have no meaning until a transaction refers to them.

        Raises:
            CommandError: mongod refused some of them, or they are not on a majority.
            BackendError: mongod does not answer.
        """
        for batch in write_batches(documents):
            await self._write({"insert": collection, "documents": batch})

    async def delete(self, collection: str, query: Mapping[str, Any]) -> None:
        """Delete documents to which nothing refers; errors as `insert`."""
        await self._write({"delete": collection, "deletes": [{"q": query, "limit": 0}]})

    async def update(self, collection: str, statements: Sequence[Mapping[str, Any]]) -> None:
        """Run the statements of an update; errors as `insert`."""
        await self._write({"update": collection, "updates": statements})

    async def update_many(
        self, collection: str, query: Mapping[str, Any], update: Mapping[str, Any] | Sequence[Mapping[str, Any]]
    ) -> None:
        """Update all documents that match, each by itself; transactions that have read one of them start again.

        Errors as `insert`.
        """
        await self._write({"update": collection, "updates": [{"q": query, "u": update, "multi": True}]})

    async def shards(self) -> list[ShardEntry]:
        """All shards, in the order of their names."""
        return [ShardEntry.from_document(document) for document in await self.find("shards", {}, sort={"_id": 1})]

    async def shard(self, shard_id: str) -> ShardEntry:
        """One shard.

        Raises:
            CommandError: ShardNotFound.
        """
        document = await self.find_by_id("shards", shard_id)
        if document is None:
            raise CommandError(ErrorCode.ShardNotFound, f"Shard {shard_id} not found")
        return ShardEntry.from_document(document)

    async def now(self, told: Mapping[str, Any] | None = None) -> Timestamp:
        """The cluster time; writes after this call get a later one.

        So objects that are created in succession, with a write in between, get different timestamps.

        Args:
            told: a ``$clusterTime`` that the result must not be older than.
        """
        gossip = {} if told is None else {CLUSTER_TIME.decode(): told}
        reply = await self.mongod.command("admin", {"ping": 1, **gossip})
        time: Timestamp = reply["$clusterTime"]["clusterTime"]
        return time

    async def snapshot_window_seconds(self) -> int:
        """How long mongod keeps the history of data, and hence configd that of its placement."""
        return await self._parameter("minSnapshotHistoryWindowInSeconds")

    async def session_timeout_minutes(self) -> int:
        """How long after its last use a logical session expires."""
        return await self._parameter("localLogicalSessionTimeoutMinutes")

    async def _parameter(self, name: str) -> int:
        reply = await self.mongod.command("admin", {"getParameter": 1, name: 1})
        return int(reply[name])

    async def _write(self, command: Mapping[str, Any]) -> None:
        reply = await self.mongod.command(DB, {**command, "writeConcern": MAJORITY})
        check_writes(reply)
