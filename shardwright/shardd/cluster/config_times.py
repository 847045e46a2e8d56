"""The newest config time that this shard has seen; it survives a change of primary.

A shard that gave a range away must never mistake an older catalog for the current one, no matter which member is
primary. So the time is persisted in ``config.vectorClock`` with majority write concern after the catalog has changed,
before anything relies on the change. A new primary reads it before it admits operations.
"""

from collections.abc import Mapping
from time import time
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.sharding.catalog.config_time import advance_config_time
from shardwright.sharding.clock import VectorClock, VectorTime
from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES, received_versions
from shardwright.wire.rawbson import Span
from shardwright.wire.request import Request

_DB: Final = "config"
_COLLECTION: Final = "vectorClock"
_STATE_ID: Final = "vectorClockState"
_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}

AHEAD_SECONDS_MAX: Final = 60
"""Seconds that a time in a request may be ahead of the wall clock and of the servers' cluster times.

Any client can send a time; later ones are ignored. Cluster times count because they stay ahead when a clock is set
back.
"""


class ConfigTimes:
    """A shard daemon's vector clock and its durable part."""

    def __init__(self, mongod: LocalMongod) -> None:
        self.clock = VectorClock()
        self._mongod = mongod
        self._durable = VectorTime()
        self._told_by_servers = 0

    def observe(self, request: Request) -> None:
        """Advance the clock to the times in a request, unless they are in the future.

        Each involved namespace carries its own config time, because the router may have read them at different times.
        Malformed times raise TypeMismatch or FailedToParse.
        """
        self._observe(request.body, request.fields)
        involved = request.fields.get(INVOLVED_NAMESPACES)
        if involved is not None:
            for fields in received_versions(request.body, involved).values():
                self._observe(request.body, fields)

    def _observe(self, body: bytes, fields: Mapping[bytes, Span]) -> None:
        limit = (max(int(time()), self._told_by_servers >> 32) + AHEAD_SECONDS_MAX) << 32
        seen = VectorTime.from_message(body, fields)
        self.clock.advance(VectorTime(*(each if each < limit else 0 for each in seen.components)))

    def observe_reply(self, reply: Mapping[str, Any]) -> None:
        """Advance the clock to the times in the reply of another server, or of this shard's mongod."""
        told = VectorTime.from_gossip(reply)
        self._told_by_servers = max(self._told_by_servers, told.cluster_time)
        self.clock.advance(told)

    def gossip(self) -> dict[str, Any]:
        """Return the time fields for requests and replies between servers; empty while no time is known."""
        return self.clock.gossip()

    async def recover(self) -> None:
        """Advance the clock to the time that the former primary persisted."""
        self._durable = VectorTime()
        find = {"find": _COLLECTION, "filter": {"_id": _STATE_ID}, "$readPreference": {"mode": "nearest"}}
        reply = await self._mongod.command(_DB, find)
        self.observe_reply(reply)
        for document in reply["cursor"]["firstBatch"]:
            self._durable = VectorTime.from_document(document)
            advance_config_time(self.clock, self._durable.config_time)
            self.clock.advance(self._durable)

    async def wait_durable(self) -> None:
        """Return when a majority of the set has the current config time, or raise an error after a timeout."""
        known = self.clock.time
        if known.config_time <= self._durable.config_time:
            return
        state = known.to_document()
        newest = {"q": {"_id": state.pop("_id")}, "u": {"$max": state}, "upsert": True}
        await self._mongod.write(_DB, {"update": _COLLECTION, "updates": [newest], "writeConcern": _MAJORITY})
        self._durable = self._durable.joined(known)
