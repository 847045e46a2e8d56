"""Reads on a secondary after a given time: the metadata of their collection must be at least as new as that.

A secondary uses its metadata until its oplog brings a change (`cache_watch`), a moment after the data itself has
arrived. Usually that is right, as it matches the data. But a read after a time (``afterClusterTime``) may follow a
write that another shard took after a migration. So the cached entry is read after that time; it has changed by the
beginning of the critical section at the latest (``enterCriticalSectionCounter``).
"""

from typing import Any
from weakref import WeakKeyDictionary

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.noop_writer import awaited_time
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.catalog.cache import CACHE_COLLECTIONS
from shardwright.wire.request import Request
from shardwright.wire.transport.request_loop import may_run_in_reactor


class CausalReads:
    """Remembers the cached entries as they were last read.

    Args:
        mongod: the local mongod.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        self._entries: WeakKeyDictionary[NamespaceState, list[dict[str, Any]]] = WeakKeyDictionary()

    @may_run_in_reactor
    async def prepare(self, request: Request, state: NamespaceState) -> None:
        """Forget a collection's metadata if its cached entry has changed by the time that a read waits for.

        Raises:
            CommandError: MaxTimeMSExpired, the local mongod did not reach that time.
            BackendError: mongod does not answer.
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
