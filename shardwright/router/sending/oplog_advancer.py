"""Advancing a shard's majority past a cluster time with a no-op in its oplog.

A change stream may return an event once all shards guarantee that they have nothing earlier. A shard without writes
advances its guarantee only every ten seconds, when it writes a no-op by itself. So the router requests a no-op when an
event waits for one, and never otherwise. All streams of the router share these no-ops.
"""

from collections import defaultdict
from typing import Final

import bson
import trio
from bson.timestamp import Timestamp

from shardwright.router.sending.shard_sender import ShardSender
from shardwright.sharding.clock import signed_cluster_time
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg

logger = get_logger("router.oplogs")

_SECONDS_MAX: Final = 1.0
"""Time limit for a shard. Without a primary it cannot write a no-op, and the stream requests it again."""


class OplogAdvancer:
    """Writer of no-ops that advance the oplogs of shards."""

    def __init__(self, sender: ShardSender) -> None:
        self._sender = sender
        self._reached: defaultdict[str, int] = defaultdict(int)
        self._writing: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    async def pass_time(self, shard_id: str, time: Timestamp) -> bool:
        """Advance the majority of a shard past a cluster time, so that its later commits have later times.

        Returns False if the shard refused or did not answer soon.
        """
        wanted = pack_timestamp(time)
        if self._reached[shard_id] > wanted:
            return True
        with trio.move_on_after(_SECONDS_MAX):
            async with self._writing[shard_id]:
                if self._reached[shard_id] <= wanted:  # the previous holder of the lock may have passed it
                    try:
                        self._reached[shard_id] = await self._write(shard_id, time)
                    except CommandError as error:
                        logger.debug("Could not write a no-op", shard=shard_id, error=str(error))
        return self._reached[shard_id] > wanted

    async def _write(self, shard_id: str, time: Timestamp) -> int:
        """Write a no-op unless one of the shard's writes is later than the time; returns the time reached."""
        later = Timestamp(time.time, time.inc + 1)
        note = {
            "appendOplogNote": 1,
            "maxClusterTime": later,
            "data": {"msg": "a change stream waits for this time"},
            "writeConcern": {"w": "majority", "wtimeout": int(_SECONDS_MAX * 1000)},
            # The no-op gets the first time after those that the shard has seen.
            "$clusterTime": signed_cluster_time(time),
            "$db": "admin",
        }
        reply = await self._sender.send(shard_id, op_msg(bson.encode(note), request_id=next_request_id()))
        if reply.error is not None:
            if reply.error.code != ErrorCode.StaleClusterTime:  # the oplog has passed it
                raise reply.error
            return pack_timestamp(later)
        return pack_timestamp(reply.get(b"operationTime", later))
