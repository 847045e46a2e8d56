"""The clients of the replica sets that a shard talks to."""

import trio
from bson.timestamp import Timestamp

from shardwright.shardd.exchange.remote_sets import RemoteSets
from shardwright.sharding.catalog.documents import ShardEntry
from shardwright.wire.transport.pool import ConnectionPools
from tests.transports import new_transport


async def test_a_shard_that_was_added_again_has_a_client_of_its_own() -> None:
    """It may be another replica set at the same hosts, whose elections count from the beginning."""

    async with trio.open_nursery() as nursery:
        sets = RemoteSets(ConnectionPools(new_transport(), dict), dict, nursery)
        former, present = (ShardEntry("one", "rs/127.0.0.1:1", Timestamp(time, 1)) for time in (1, 2))
        client = sets.of_shard(former)
        assert sets.of_shard(former) is client
        assert sets.of_shard(present) is not client
        assert sets.of_shard(present) is sets.of_shard(present)
        nursery.cancel_scope.cancel()
