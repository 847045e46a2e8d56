"""The metadata of a secondary: changes by the primary, and reads after a given time.

The primary's ``config.cache.*`` and range deletions arrive by replication. Until then a secondary may answer routers by
its older metadata, which matches its older data; afterwards it must not. Change streams do not cover the config
database, so the oplog itself is followed, with a filter that mongod applies.

A secondary uses its metadata until its oplog brings a change (`CacheWatch`), a moment after the data itself has
arrived. Usually that is right, because the metadata matches the data. But a read after a time (``afterClusterTime``)
may follow a write that another shard accepted after a migration. So the cached entry is read after that time. The entry
has changed by the beginning of the critical section at the latest (``enterCriticalSectionCounter``).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final
from weakref import WeakKeyDictionary

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.hello import HelloMirror
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.noop_writer import awaited_time
from shardwright.daemon.sidecar.role_certainty import RoleCertainty
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.range_deletion_tasks import RANGE_DELETIONS
from shardwright.sharding.catalog.cache import CACHE_COLLECTIONS, CACHE_DATABASES
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Connection
from shardwright.wire.transport.cursor import DecodedCursor
from shardwright.wire.transport.request_loop import may_run_in_reactor

logger = get_logger("shardd.cache_watch")

LOCAL_RENAMES: Final = "localRenameParticipants"
"""The collection of ``config`` with this shard's pending renames: ``_id`` is renamed to ``to``."""

_AWAIT_MS: Final = 5_000


class CacheWatch:
    """Follows the local mongod's oplog while it is a secondary.

    Args:
        certainty: signals when the components of an earlier role have stopped.
        on_collection: called with a namespace whose cached entry changed.
        on_database: called with a database whose cached entry changed.
        on_range_deletion: called with an oplog entry of ``config.rangeDeletions``.
        on_rename: called with the document of a rename that begins, before mongod has applied the rename itself.
        on_gap: called when changes may have been missed.
    """

    def __init__(
        self,
        mirror: HelloMirror,
        certainty: RoleCertainty,
        open_connection: Callable[[], Awaitable[Connection]],
        *,
        on_collection: Callable[[str], None],
        on_database: Callable[[str], None],
        on_range_deletion: Callable[[Mapping[str, Any]], Awaitable[None]],
        on_rename: Callable[[Mapping[str, Any]], None],
        on_gap: Callable[[], Awaitable[None]],
    ) -> None:
        self._mirror = mirror
        self._certainty = certainty
        self._open_connection = open_connection

        async def note_collection(entry: Mapping[str, Any]) -> None:
            on_collection(_changed_id(entry))

        async def note_database(entry: Mapping[str, Any]) -> None:
            on_database(_changed_id(entry))

        async def note_rename(entry: Mapping[str, Any]) -> None:
            if entry["op"] == "i":
                on_rename(entry["o"])

        self._on_change: Mapping[str, Callable[[Mapping[str, Any]], Awaitable[None]]] = {
            str(CACHE_COLLECTIONS): note_collection,
            str(CACHE_DATABASES): note_database,
            f"config.{RANGE_DELETIONS}": on_range_deletion,
            f"config.{LOCAL_RENAMES}": note_rename,
        }
        self._on_gap = on_gap
        self._backoff = Backoff(first_seconds=0.5, seconds_max=1.0)

    async def run(self) -> None:
        """Follow the oplog while mongod is a secondary, until cancelled."""
        while True:
            while not self._is_secondary:
                await self._mirror.wait_for_change()
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(self._keep_following)
                    while self._is_secondary:
                        await self._mirror.wait_for_change()
                    scope.cancel()

    @property
    def _is_secondary(self) -> bool:
        hello = self._mirror.hello
        return hello is not None and bool(hello.get("secondary"))

    async def _keep_following(self) -> None:
        # The end of a term, a moment after its mongod has stepped down, drops the state that `on_gap` reads.
        await self._certainty.wait_settled()
        while True:
            try:
                await self._follow()
            except (BackendError, CommandError) as error:
                logger.info("Reopening the oplog cursor", error=str(error))
            await self._backoff.pause()

    async def _follow(self) -> None:
        """Follow the oplog from its current end; return when the cursor is exhausted."""
        connection = await self._open_connection()
        try:
            last = await connection.command(
                "local",
                {"find": "oplog.rs", "sort": {"$natural": -1}, "limit": 1, "singleBatch": True, **_ON_A_SECONDARY},
            )
            since = last["cursor"]["firstBatch"][0]["ts"]
            following = {
                "find": "oplog.rs",
                "filter": {"ts": {"$gt": since}, "ns": {"$in": list(self._on_change)}},
                "tailable": True,
                "awaitData": True,
                **_ON_A_SECONDARY,
            }
            # The cursor is not closed: a getMore is nearly always running, and mongod ends the cursor with the
            # connection.
            cursor = DecodedCursor(connection.command, "local", following)
            batch = await cursor.next_batch()
            # From here on no change is missed, but earlier changes may have been.
            await self._on_gap()
            self._backoff.reset()
            while True:
                for entry in batch.documents():
                    await self._on_change[entry["ns"]](entry)
                if cursor.is_exhausted:
                    return
                batch = await cursor.next_batch(maxTimeMS=_AWAIT_MS)
        finally:
            connection.close()


def _changed_id(entry: Mapping[str, Any]) -> str:
    changed: str = (entry.get("o2") or entry["o"])["_id"]
    return changed


_ON_A_SECONDARY: Final = {"$readPreference": {"mode": "nearest"}}


class CausalReads:
    """Drops metadata that is older than the time a read waits for.

    Keeps the cached entries of the last reads for comparison.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        self._entries: WeakKeyDictionary[NamespaceState, list[dict[str, Any]]] = WeakKeyDictionary()

    @may_run_in_reactor
    async def prepare(self, request: Request, state: NamespaceState) -> None:
        """Drop a collection's metadata if its cached entry has changed by the time that a read waits for.

        Raises MaxTimeMSExpired if the local mongod did not reach that time.
        """
        time = awaited_time(request)
        if time is None:
            return
        find: dict[str, Any] = {
            "find": CACHE_COLLECTIONS.collection,
            "filter": {"_id": state.namespace},
            "singleBatch": True,
            "readConcern": {"level": "local", "afterClusterTime": time},
            "$readPreference": {"mode": "nearest"},
        }
        for name in (b"$clusterTime", b"maxTimeMS"):
            if name in request.fields:
                find[name.decode(errors="replace")] = request.get(name)
        reply = await self._mongod.command(CACHE_COLLECTIONS.db, find)
        found = reply["cursor"]["firstBatch"]
        if self._entries.get(state) != found:
            self._entries[state] = found
            state.forget()
