"""Refresh of sessions on this shard's mongod that clients use only on other shards.

A mongod treats a session as ended if its own ``config.system.sessions`` has no document for it. It then kills the
session's cursors and discards its retryable writes. On a genuine shard this collection is the cluster's. Here each
mongod has a local one, except for the chunks that its shard owns (docs/sessions.md). So each daemon looks up the
sessions that its mongod needs in the cluster's collection, and refreshes the living ones locally. The owner of a
session's chunk stores the cluster's document itself.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Final

import bson
import trio

from shardwright.shardd.context.shard_context import ShardContext, send_to_shard
from shardwright.shardd.session_history.migrated_history import HistoryTable
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.logical_sessions import COLLECTION, DB, NAMESPACE
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import raw_document
from shardwright.wire.transport.cursor import DecodedCursor

if TYPE_CHECKING:
    from shardwright.sharding.routing_table import RoutingTable

logger = get_logger("shardd.sessions")

INTERVAL_SECONDS: Final = 60.0
"""Shorter than the interval at which a mongod kills cursors of ended sessions (``logicalSessionRefreshMillis``)."""

_INTERVALS_BETWEEN_WRITES: Final = 5
"""Writes are checked less often, because mongod reads all its sessions for it, at a million per second."""

_BATCH: Final = 1_000
_PARTS_OF_LIFE: Final = 3
"""A session is looked up once a third of its lifetime has passed since its last use on the mongod."""

_NEAREST: Final = {"$readPreference": {"mode": "nearest"}}


class LivingSessions:
    """The refresh of living sessions on the local mongod; `history` has the retryable writes of other shards."""

    def __init__(self, context: ShardContext, history: HistoryTable) -> None:
        self._context = context
        self._history = history
        self._table: RoutingTable | None = None

    async def run(self) -> None:
        """Refresh sessions at intervals until cancelled."""
        for turn in count(1):
            await trio.sleep(INTERVAL_SECONDS)
            await self.keep(with_writes=turn % _INTERVALS_BETWEEN_WRITES == 0)

    async def keep(self, *, with_writes: bool = True) -> None:
        """Refresh sessions now, as far as their owners answer; optionally also those with retryable writes only."""
        if self._context.identity is None:
            return
        try:
            await self._keep(with_writes=with_writes and self._context.is_primary)
        except (CommandError, BackendError) as error:
            logger.info("Could not look up which sessions live", error=str(error))

    async def _keep(self, *, with_writes: bool) -> None:
        needed = set(await self._of_cursors())
        inherited: set[bytes] = set()
        if with_writes:
            seconds = await self._lifetime_seconds() / _PARTS_OF_LIFE
            inherited = set(self._history.unused_for(seconds))
            needed.update(await self._of_writes(seconds))
        living = await self._living(needed | inherited) if needed or inherited else set()
        for batch in _batches(living & needed):
            command = {"refreshSessions": [bson.decode(each) for each in batch]}
            await self._context.mongod.command("admin", command)
        await self._history.use(living & inherited)

    async def _of_cursors(self) -> list[bytes]:
        """Return the sessions of idle cursors, each as a raw ``{id, uid}``."""
        cursors = {"$currentOp": {"allUsers": True, "idleCursors": True, "localOps": True}}
        pipeline = [cursors, {"$match": {"type": "idleCursor", "lsid.uid": {"$exists": True}}}]
        return await self._listed({"aggregate": 1, "pipeline": [*pipeline, *_sessions_in("$lsid")]}, "admin")

    async def _of_writes(self, seconds: float) -> list[bytes]:
        """Return sessions that have writes on mongod but were not used here for `seconds`."""
        limit = {"$subtract": ["$$NOW", int(seconds * 1000)]}
        known = {"from": COLLECTION, "localField": "_id", "foreignField": "_id", "as": "known"}
        pipeline = [
            {"$match": {"_id.uid": {"$exists": True}, "$expr": {"$lt": ["$lastWriteDate", limit]}}},
            *_sessions_in("$_id"),
            {"$lookup": known},
            {"$match": {"$expr": {"$lt": [{"$ifNull": [{"$first": "$known.lastUse"}, None]}, limit]}}},
            {"$project": {"_id": 1}},
        ]
        return await self._listed({"aggregate": "transactions", "pipeline": pipeline}, DB)

    async def _listed(self, aggregate: Mapping[str, Any], db: str) -> list[bytes]:
        cursor = DecodedCursor(self._context.mongod.command, db, {**aggregate, "cursor": {}, **_NEAREST})
        return [bson.encode(each["_id"]) for each in await cursor.all_documents()]

    async def _lifetime_seconds(self) -> float:
        name = "localLogicalSessionTimeoutMinutes"
        reply = await self._context.mongod.command("admin", {"getParameter": 1, name: 1})
        return float(reply[name]) * 60

    async def _living(self, sessions: Iterable[bytes]) -> set[bytes]:
        """Return the sessions that have a document in the cluster's collection on another shard."""
        catalog = await self._context.catalog()
        table = self._table = await catalog.read(read_routing(NAMESPACE, self._table))
        living: set[bytes] = set()
        if table is None:
            return living
        by_shard: dict[str, list[bytes]] = {}
        for session in sessions:
            key = table.key_pattern.key_bytes_of_document(bson.encode({"_id": raw_document(session)}))
            by_shard.setdefault(table.shard_for_key(key), []).append(session)
        by_shard.pop(self._context.require_identity().shard_name, None)
        for shard, owned in by_shard.items():
            for batch in _batches(owned):
                query = {"filter": {"_id": {"$in": list(map(raw_document, batch))}}, "projection": {"_id": 1}}
                find = {"find": COLLECTION, **query, "batchSize": _BATCH + 1, "singleBatch": True}
                reply = await send_to_shard(self._context, shard, DB, find, may_be_cached=True)
                living.update(bson.encode(each["_id"]) for each in reply["cursor"]["firstBatch"])
        return living


def _sessions_in(field: str) -> list[dict[str, Any]]:
    """Return stages that list each session once; the field may also hold the session of an internal transaction."""
    return [{"$group": {"_id": {"id": f"{field}.id", "uid": f"{field}.uid"}}}]


def _batches(sessions: Iterable[bytes]) -> Iterator[list[bytes]]:
    iterator = iter(sessions)
    while batch := list(islice(iterator, _BATCH)):
        yield batch
