"""Reads on a secondary that have to see a given time: what is known of their collection has to be as young as that.

A secondary serves by what it knew until its oplog brings something newer (`cache_watch`), a moment after the data
itself has come. Usually that is right, since the data was then like that. But a read after a time
(``afterClusterTime``) may follow a write that another shard took after a migration. So the cached entry is looked at as
of that time; it has changed at the latest when the critical section began (``enterCriticalSectionCounter``).
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
    """What the cached entries were when they were looked at last.

    Args:
        mongod: the local mongod.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        self._entries: WeakKeyDictionary[NamespaceState, list[dict[str, Any]]] = WeakKeyDictionary()

    @may_run_in_reactor
    async def prepare(self, request: Request, state: NamespaceState) -> None:
        """Forget what is known of a collection if it was known before the time that a read waits for, and has changed.

        Raises:
            CommandError: MaxTimeMSExpired, the local mongod did not come to that time.
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
