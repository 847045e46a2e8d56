"""A donor's part in one resharding operation."""

from typing import Any

import trio
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.shardd.context.fail_point_names import RESHARDING_PAUSE_BEFORE_BLOCKING_WRITES
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.resharding.donor_source import DonorSource, read_ownership
from shardwright.shardd.resharding.local_documents import LocalPart
from shardwright.shardd.resharding.section import ReshardingSection
from shardwright.shardd.resharding.state_times import StateTimes
from shardwright.sharding.resharding.states import DonorState
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


class ReshardingDonor:
    """The donor of one operation, in one term.

    Args:
        context: this shard daemon's context.
        part: the persisted state.
        section: the critical section.
        nursery: the term's nursery.

    Attributes:
        part: see above.
        is_aborted: whether the operation was aborted, so that nothing may be blocked any more.
        times: how long it has been in which state in this term.
    """

    def __init__(
        self, context: ShardContext, part: LocalPart, section: ReshardingSection, nursery: trio.Nursery
    ) -> None:
        self.part = part
        self._context = context
        self._section = section
        self._nursery = nursery
        self._sources: dict[str, DonorSource] = {}
        self._changing = trio.Lock()
        self.is_aborted = False
        self.times = StateTimes(part.operation.state)

    async def describe(self) -> dict[str, Any]:
        """The size of what this shard has, and a time before which nothing needs to be fetched.

        No index changes after that. One that is created or dropped by a command from before may have to wait in mongod
        for an open transaction, and would be missed by the recipients, which copy the indexes next.

        Raises:
            CommandError: CollectionUUIDMismatch, the collection is not the one to be resharded; mongod refuses.
        """
        namespace = self.part.participation.namespace
        await self._context.namespace(str(namespace)).wait_present_writes()
        local = await describe(self._context.mongod, namespace)
        if local is None or local.uuid != self.part.participation.source_uuid:
            raise CommandError(ErrorCode.CollectionUUIDMismatch, f"The donor does not have the collection {namespace}")
        statistics = await self._context.mongod.command(namespace.db, {"collStats": namespace.collection})
        pong = await self._context.mongod.command("admin", {"ping": 1})
        return {
            "minFetchTimestamp": pong["operationTime"],
            "bytesToClone": Int64(statistics["size"]),
            "documentsToClone": Int64(statistics["count"]),
        }

    async def block_writes(self) -> Timestamp:
        """Block writes until commit or abort; returns a time that is not earlier than that of any admitted write.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        await self._context.fail_points.hang_while(RESHARDING_PAUSE_BEFORE_BLOCKING_WRITES)
        async with self._changing:
            if self.part.operation.state is not DonorState.BLOCKING_WRITES:
                # Persisted first: the next primary then blocks from the beginning what this one has blocked.
                await self._enter(DonorState.BLOCKING_WRITES)
            await self._section.block_writes()
            if self.is_aborted:
                self._section.leave()
        pong = await self._context.mongod.command("admin", {"ping": 1})
        time: Timestamp = pong["operationTime"]
        return time

    async def open_source(
        self, recipient: str, session_id: str, position: Timestamp | None, from_key: bytes | None
    ) -> Timestamp:
        """Open the source of a recipient, in place of a former one; returns the time after which it is followed.

        Raises:
            CommandError: see `CloneSource.start`.
        """
        former = self._sources.pop(recipient, None)
        if former is not None:
            former.close()
        table, ownership = await read_ownership(self._context, self.part.participation)
        source = DonorSource(self._context, ownership, table, session_id, recipient)
        followed = await source.start(position, from_key)
        self._sources[recipient] = source
        self._nursery.start_soon(source.run)
        async with self._changing:
            if self.part.operation.state is DonorState.PREPARING_TO_DONATE:
                await self._enter(DonorState.DONATING_INITIAL_DATA)
        return followed

    def source(self, recipient: str, session_id: str) -> DonorSource:
        """The source of a recipient.

        Raises:
            CommandError: NotYetInitialized, it has to be opened again.
        """
        source = self._sources.get(recipient)
        if source is None or source.session_id != session_id:
            raise CommandError(ErrorCode.NotYetInitialized, "The source of this resharding session is not open")
        return source

    def close(self) -> None:
        """End all sources."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()

    def shown(self) -> dict[str, Any]:
        """What ``currentOp`` shows of it."""
        return {
            "countWritesDuringCriticalSection": Int64(self._section.held_writes),
            "totalCriticalSectionTimeElapsedSecs": self.times.seconds_in(DonorState.BLOCKING_WRITES),
            "donorState": str(self.part.operation.state),
        }

    async def _enter(self, state: DonorState) -> None:
        await self.part.save(state=state)
        self.times.enter(state)
