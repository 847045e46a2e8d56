"""What makes a change of the granularity of a sharded time-series collection safe, around the change of each shard.

Routers find the shard for a measurement, and the shards for a range of times, by the granularity. So operations wait on
every shard that owns chunks, from before the catalog changes until the shard itself has changed; and all of them then
refuse the versions by which routers have targeted so far.
"""

from collections.abc import Awaitable, Callable, Collection
from typing import Final
from uuid import UUID

from shardwright.shardd.context.other_shards import all_shard_ids, send_to_shards
from shardwright.shardd.ddl.blocked_collections import READS_AND_WRITES, UNBLOCK
from shardwright.shardd.ddl.coordinators.allow_migrations import allow_migrations
from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.shardd.ddl.time_series import check_not_finer
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.time_series import TimeSeriesFields
from shardwright.wire.errors import CommandError

BLOCK_SHARDS: Final = "BlockShards"
UPDATE_CONFIG: Final = "UpdateConfig"
UPDATE_SHARDS: Final = "UpdateShards"

Step = Callable[[RoutingTable], Awaitable[None]]
"""Acts on the shards of a routing table."""


class GranularityChange:
    """One coordinator's change; its phase says how far it is.

    Args:
        coordinator: it has just entered a phase, and used its session for no command yet.
        uuid: the UUID of the buckets.
        granularity: what the granularity is to be.
    """

    def __init__(self, coordinator: Coordinator, uuid: UUID, granularity: str) -> None:
        self._coordinator = coordinator
        self._uuid = uuid
        self._granularity = granularity

    async def prepare(self, check: Step, begin: Step) -> None:
        """Keep chunks where they are, have operations wait, and commit; afterwards the shards have to change.

        Args:
            check: finds out whether the owners of chunks would refuse anything else that is to change.
            begin: changes that on the first shard, while operations wait.

        Raises:
            CommandError: a shard refused, or could not be reached. Unless the coordinator must finish, nothing has
                changed, and operations go on.
        """
        coordinator = self._coordinator
        if coordinator.phase == BLOCK_SHARDS:
            try:
                with coordinator.point_of_no_return():
                    await self._block(check, begin)
            except CommandError:
                if not coordinator.must_finish:
                    await self._give_up()
                raise
            await coordinator.enter_phase(UPDATE_CONFIG)
        coordinator.must_finish = True
        if coordinator.phase == UPDATE_CONFIG:
            change = {
                "_configsvrCollMod": coordinator.namespace.collection,
                "collModRequest": {"timeseries": {"granularity": self._granularity}},
            }
            await (await coordinator.context.catalog()).commit(change, coordinator.namespace.db)
            await coordinator.enter_phase(UPDATE_SHARDS)

    async def finish(self) -> None:
        """Let chunks move again, after all shards have changed.

        Raises:
            CommandError: a shard or the config servers could not be reached.
        """
        await self._coordinator.enter_phase(UPDATE_SHARDS)  # for another command to the config servers
        await self._allow_migrations(is_allowed=True)

    async def present_table(self) -> RoutingTable:
        """The routing table, whose owners do not change from `prepare` to `finish`.

        Raises:
            CommandError: the config servers could not be reached.
        """
        table = await self._coordinator.read_routing()
        assert table is not None  # the coordinator holds the lock of the collection
        return table

    async def _block(self, check: Step, begin: Step) -> None:
        coordinator = self._coordinator
        await self._allow_migrations(is_allowed=False)
        table = await self.present_table()
        await self._check_shards(table)
        await check(table)
        await self._send(READS_AND_WRITES, table.shards)
        await coordinator.enter_phase(BLOCK_SHARDS)  # for another command to the participants
        await begin(table)

    async def _check_shards(self, table: RoutingTable) -> None:
        """Check that no shard has a granularity from which it would not change."""
        coordinator = self._coordinator
        listing = {"listCollections": 1, "filter": {"name": coordinator.namespace.collection}}
        shard_ids = {coordinator.context.require_identity().shard_name, *table.shards}
        replies = await send_to_shards(coordinator.context, shard_ids, coordinator.namespace.db, listing)
        for shard_id in sorted(replies):
            for entry in replies[shard_id]["cursor"]["firstBatch"]:
                check_not_finer(self._granularity, TimeSeriesFields.from_document(entry["options"]["timeseries"]))

    async def _give_up(self) -> None:
        coordinator = self._coordinator
        coordinator.must_finish = True
        await coordinator.enter_phase(BLOCK_SHARDS)
        await self._send(UNBLOCK, await all_shard_ids(coordinator.context))
        await self._allow_migrations(is_allowed=True)
        coordinator.must_finish = False

    async def _send(self, kind: str, shard_ids: Collection[str]) -> None:
        coordinator = self._coordinator
        block = {
            "_shardsvrParticipantBlock": coordinator.namespace.collection,
            "blockType": kind,
            **coordinator.session,
        }
        await send_to_shards(coordinator.context, shard_ids, coordinator.namespace.db, block)

    async def _allow_migrations(self, *, is_allowed: bool) -> None:
        coordinator = self._coordinator
        await allow_migrations(
            coordinator.context, coordinator.namespace, self._uuid, coordinator.session, allow=is_allowed
        )
