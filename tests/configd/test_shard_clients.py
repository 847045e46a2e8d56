"""Commands to shards are sent in the term that they belong to."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio

from shardwright.configd.term.shard_clients import ShardClients, handshake
from shardwright.sharding.catalog.documents import ShardEntry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.pool import ConnectionPools
from tests.configd.fake_shard import fake_shards
from tests.transports import new_transport


def test_a_daemon_that_slept_through_an_election_sends_nothing() -> None:
    """Its mongod refuses to say the times that go along with the command; but commands without times are sent, too."""

    async def gossip() -> Mapping[str, Any]:
        return {}

    async def over() -> None:
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")

    with fake_shards("s") as shards:

        async def main() -> None:
            entry = ShardEntry("s", shards["s"].connection_string)
            async with trio.open_nursery() as nursery:
                pools = ConnectionPools(new_transport(), handshake)
                nursery.start_soon(pools.run)
                clients = ShardClients(nursery, pools, gossip, trio.lowlevel.checkpoint)
                await clients.command(entry, "admin", {"ping": 1})
                clients.check_term = over
                with pytest.raises(CommandError) as refused:
                    await clients.command(entry, "admin", {"_shardsvrMoveRange": "d.c"})
                assert refused.value.code == ErrorCode.InterruptedDueToReplStateChange
                nursery.cancel_scope.cancel()

        trio.run(main)
        assert shards["s"].received("ping")
        assert not shards["s"].received("_shardsvrMoveRange")
