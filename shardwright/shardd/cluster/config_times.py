"""The newest config time that this shard has seen, which a new primary of the shard goes on from.

A shard that gave a range away must not take an older catalog for the present one, under whichever primary. So the time
is persisted in ``config.vectorClock``, on a majority, once the catalog has changed and before anything relies on that;
a new primary reads it before it lets operations in.
"""

from collections.abc import Mapping
from time import time
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.sharding.catalog.config_time import advance_config_time
from shardwright.sharding.clock import CONFIG_TIME, VectorClock, VectorTime
from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES, received_versions
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.rawbson import Span
from shardwright.wire.request import Request

_DB: Final = "config"
_COLLECTION: Final = "vectorClock"
_STATE_ID: Final = "vectorClockState"
_MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}

AHEAD_SECONDS_MAX: Final = 60
"""How far a time in a request may be ahead of the wall clock: any client can name one, and no clock may follow it."""


class ConfigTimes:
    """The vector clock of a shard daemon, and as much of it as is durable.

    Attributes:
        clock: the newest times seen.
    """

    def __init__(self, mongod: LocalMongod) -> None:
        self.clock = VectorClock()
        self._mongod = mongod
        self._durable = VectorTime()

    def observe(self, request: Request) -> None:
        """Take in the config times that a request gossips, unless they are of the future.

        Each of the involved namespaces may have been read at a time of its own.

        Raises:
            CommandError: TypeMismatch or FailedToParse.
        """
        self._observe(request.body, request.fields)
        involved = request.fields.get(INVOLVED_NAMESPACES)
        if involved is not None:
            for fields in received_versions(request.body, involved).values():
                self._observe(request.body, fields)

    def _observe(self, body: bytes, fields: Mapping[bytes, Span]) -> None:
        span = fields.get(CONFIG_TIME)
        if span is None:
            return
        config_time = VectorTime.from_message(body, {CONFIG_TIME: span}).config_time
        if config_time >> 32 <= time() + AHEAD_SECONDS_MAX:
            advance_config_time(self.clock, config_time)

    def gossip(self) -> dict[str, Any]:
        """What requests and replies between servers carry; empty while no time is known."""
        config_time = self.clock.time.config_time
        return {CONFIG_TIME.decode(): unpack_timestamp(config_time)} if config_time else {}

    async def recover(self) -> None:
        """Go on from what the former primary persisted.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        self._durable = VectorTime()
        find = {"find": _COLLECTION, "filter": {"_id": _STATE_ID}, "$readPreference": {"mode": "nearest"}}
        for document in (await self._mongod.command(_DB, find))["cursor"]["firstBatch"]:
            self._durable = VectorTime.from_document(document)
            advance_config_time(self.clock, self._durable.config_time)
            self.clock.advance(self._durable)

    async def wait_durable(self) -> None:
        """Return when a majority of the set has the config time that is known now.

        Raises:
            CommandError: mongod refuses, or the majority has not got it in time.
            BackendError: mongod does not answer.
        """
        known = self.clock.time
        if known.config_time <= self._durable.config_time:
            return
        state = known.to_document()
        newest = {"q": {"_id": state.pop("_id")}, "u": {"$max": state}, "upsert": True}
        await self._mongod.write(_DB, {"update": _COLLECTION, "updates": [newest], "writeConcern": _MAJORITY})
        self._durable = self._durable.joined(known)
