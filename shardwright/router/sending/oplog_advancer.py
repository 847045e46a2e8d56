"""Having the majority of a shard reach a cluster time, by a no-op in its oplog.

A change stream may return an event once all shards have promised to have nothing earlier, and a shard without writes
promises nothing new: on its own it writes a no-op every ten seconds. So the router requests a no-op when an event
waits for it, and none without a stream. All streams of the router share them.
"""

from collections import defaultdict
from typing import Final

import bson
import trio
from bson.timestamp import Timestamp

from shardwright.router.sending.shard_sender import ShardSender
from shardwright.sharding.clock import signed_cluster_time
from shardwright.sharding.timestamps import pack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg

logger = get_logger("router.oplogs")

_SECONDS_MAX: Final = 1.0
"""How long to wait for a shard. Without a primary it writes none, and the stream that needs one asks again."""


class OplogAdvancer:
    """Advances the oplogs of shards.

    Args:
        sender: sends requests to shards.
    """

    def __init__(self, sender: ShardSender) -> None:
        self._sender = sender
        self._reached: defaultdict[str, int] = defaultdict(int)
        self._writing: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    async def pass_time(self, shard_id: str, time: Timestamp) -> bool:
        """Have the majority of a shard pass a cluster time, so that whatever it commits later has a later one.

        Returns:
            Whether it has; False if the shard did not answer soon, or refused.
        """
        wanted = pack_timestamp(time)
        if self._reached[shard_id] > wanted:
            return True
        with trio.move_on_after(_SECONDS_MAX):
            async with self._writing[shard_id]:
                if self._reached[shard_id] <= wanted:  # unless the previous holder of the lock has passed it
                    try:
                        self._reached[shard_id] = await self._write(shard_id, time)
                    except CommandError as error:
                        logger.debug("Could not write a no-op", shard=shard_id, error=str(error))
        return self._reached[shard_id] > wanted

    async def _write(self, shard_id: str, time: Timestamp) -> int:
        """Write a no-op if none of the shard's writes is later than the time; returns what it has reached.

        Raises:
            CommandError: the shard did not answer, or refused.
        """
        later = Timestamp(time.time, time.inc + 1)
        note = {
            "appendOplogNote": 1,
            "maxClusterTime": later,
            "data": {"msg": "a change stream waits for this time"},
            "writeConcern": {"w": "majority", "wtimeout": int(_SECONDS_MAX * 1000)},
            # The no-op gets the next time after those that the shard knows.
            "$clusterTime": signed_cluster_time(time),
            "$db": "admin",
        }
        reply = await self._sender.send(shard_id, op_msg(bson.encode(note), request_id=next_request_id()))
        if reply.error is not None:
            if reply.error.code != ErrorCode.StaleClusterTime:  # the oplog has passed it
                raise reply.error
            return pack_timestamp(later)
        return pack_timestamp(reply.get(b"operationTime", later))
