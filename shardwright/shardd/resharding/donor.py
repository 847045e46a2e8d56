"""The donor of a resharding operation: the sources of its recipients, and its critical section.

A source is a migration source whose range is the whole key space. It hands over only documents that the donor owns by
the present key and the recipient by the new key; any other document is reported as gone. The source is lost with the
daemon. The recipient then opens another one from its checkpoint.
"""

from typing import Any, Final
from uuid import UUID

import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.shardd.context.fail_point_names import RESHARDING_PAUSE_BEFORE_BLOCKING_WRITES
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import describe
from shardwright.shardd.metadata.critical_sections import SectionDriver, writers_of
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.migration.donor.clone_source import CloneSource
from shardwright.shardd.resharding.local_documents import LocalPart, StateTimes
from shardwright.shardd.session_history.donor_history import DonorHistory
from shardwright.shardd.session_history.oplog_history import HistoryReader
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_participation import DonorState, Ownership, Participation, identity_of
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.resharding.donor")

_DOCUMENTS_AT_A_TIME: Final = 200
"""Number of documents examined without a checkpoint, which takes some 5 ms."""


class DonorSource:
    """The source that one recipient pulls from.

    Args:
        ownership: the owners of documents before and after resharding.
        source_table: the routing table by the present key.

    Attributes:
        history: the executed retryable writes, once `start` has returned.
    """

    def __init__(
        self, context: ShardContext, ownership: Ownership, source_table: RoutingTable, session_id: str, recipient: str
    ) -> None:
        self.session_id = session_id
        self._ownership = ownership
        self._donor = context.require_identity().shard_name
        self._recipient = recipient
        collection, pattern = source_table.collection, source_table.key_pattern
        whole = ChunkRange.of(pattern, pattern.global_min(), pattern.global_max())
        self._scope = (context.mongod, collection.namespace, collection.uuid, pattern, whole)
        self._source = CloneSource(*self._scope, session_id, observe=lambda entry: self.history.observe(entry))
        self.history: DonorHistory

    @property
    def queued(self) -> int:
        """Number of changed documents still to hand over."""
        return self._source.queued_ids

    async def start(self, position: Timestamp | None, from_key: bytes | None) -> Timestamp:
        """Open the source; see `CloneSource.start`."""
        followed = await self._source.start(position=position, from_key=from_key)
        # Created only after the oplog cursor, so that together they miss no write.
        mongod, namespace, uuid, pattern, whole = self._scope
        self.history = DonorHistory(mongod, HistoryReader(namespace, uuid.bytes, pattern, whole))
        return followed

    async def run(self) -> None:
        """Read ahead until `close`; the recipient receives a failure with its next request."""
        try:
            await self._source.run()
        except (CommandError, BackendError) as error:
            logger.info("A donor's source has ended", recipient=self._recipient, error=str(error))
        finally:
            await self.history.close()

    def close(self) -> None:
        """End `run`."""
        self._source.close()

    async def next_clone_batch(self, number: int) -> tuple[list[bytes], bytes | None]:
        """Return the next documents to send, and the last cloned shard key; None at the end.

        Raises:
            CommandError: see `CloneSource.next_clone_batch`; ShardKeyNotFound, a document has an array in its new key.
        """
        array = bytes(await self._source.next_clone_batch(number))
        documents = rawbson.array_documents(array, (rawbson.ARRAY, 0, 0, len(array)))
        if not documents:
            return [], None
        return await self._handed_over(documents), self._ownership.source_key_of(documents[-1])

    async def next_mods(self, number: int, since: Timestamp | None) -> tuple[list[bytes], list[bytes], int, Timestamp]:
        """Return changes: raw ids that are gone for the recipient, documents, the size of both, and the position.

        Args:
            number: see `CloneSource.next_mods`.
            since: wait until all changes up to this time are known.

        Raises:
            CommandError: see `CloneSource.next_mods`; ShardKeyNotFound, a document has an array in its new key.
        """
        if since is not None:
            await self._source.wait_followed(since)
        mods = await self._source.next_mods(number)
        kept = await self._handed_over(mods.reload)
        # A document that now belongs to another recipient is gone for this one.
        still_here = {identity_of(each) for each in kept}
        left = [identity for each in mods.reload if (identity := identity_of(each)) not in still_here]
        return [*mods.deleted, *left], kept, mods.size, mods.position

    async def _handed_over(self, documents: list[bytes]) -> list[bytes]:
        """Select the documents that belong to the recipient; other tasks run in between."""
        kept: list[bytes] = []
        for start in range(0, len(documents), _DOCUMENTS_AT_A_TIME):
            some = documents[start : start + _DOCUMENTS_AT_A_TIME]
            kept += self._ownership.handed_over(some, self._donor, self._recipient)
            await trio.lowlevel.checkpoint()
        return kept


async def read_ownership(context: ShardContext, participation: Participation) -> tuple[RoutingTable, Ownership]:
    """Read the routing table by the present key and both owners; NoSuchReshardCollection if the operation is gone."""
    source = await _read_table(context, participation.namespace, participation.source_uuid)
    target = await _read_table(context, participation.temporary, participation.id)
    return source, Ownership(source, target)


async def _read_table(context: ShardContext, namespace: Namespace, uuid: UUID) -> RoutingTable:
    catalog = await context.catalog()
    table = await catalog.read(read_routing(str(namespace)))
    if table is None or table.collection.uuid != uuid:
        raise CommandError(
            ErrorCode.NoSuchReshardCollection, f"The catalog has no collection {namespace} with UUID {uuid}"
        )
    return table


def section_of(context: ShardContext, participation: Participation) -> SectionDriver[NamespaceState]:
    """Return the critical section of an operation on this shard."""
    namespace = str(participation.namespace)
    state = context.namespace(namespace)
    operation = Binary.from_uuid(participation.id)
    reason = {"command": "resharding_donor", "collection": namespace, "reshardingUUID": operation}
    return SectionDriver(state, reason, drains=[writers_of(state)])


class ReshardingDonor:
    """The donor of one operation, in one term.

    Attributes:
        times: the time spent in each state in this term.
    """

    def __init__(
        self, context: ShardContext, part: LocalPart, section: SectionDriver[NamespaceState], nursery: trio.Nursery
    ) -> None:
        self.part = part
        self._context = context
        self._section = section
        self._nursery = nursery
        self._sources: dict[str, DonorSource] = {}
        self._changing = trio.Lock()
        self.times = StateTimes(part.operation.state)

    async def describe(self) -> dict[str, Any]:
        """Return the size of the donor's data, and the minimum fetch timestamp.

        It waits for the present writes, so that no index changes after that time. An earlier command that creates or
        drops an index may wait in mongod for an open transaction. The recipients, which copy the indexes next, would
        miss it.

        Raises:
            CommandError: CollectionUUIDMismatch, the collection is not the one to be resharded; mongod refuses.
        """
        namespace = self.part.participation.namespace
        await self._context.namespace(str(namespace)).wait_present_writes()
        local = await describe(self._context.mongod, namespace)
        if local is None or local.uuid != self.part.participation.source_uuid:
            raise CommandError(ErrorCode.CollectionUUIDMismatch, f"The donor does not have the collection {namespace}")
        statistics = await self._context.mongod.command(namespace.db, {"collStats": namespace.collection})
        return {
            "minFetchTimestamp": await self._context.mongod.operation_time(),
            "bytesToClone": Int64(statistics["size"]),
            "documentsToClone": Int64(statistics["count"]),
        }

    async def block_writes(self) -> Timestamp:
        """Block writes until commit or abort; return a time that is not earlier than any admitted write.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        await self._context.fail_points.hang_while(RESHARDING_PAUSE_BEFORE_BLOCKING_WRITES)
        async with self._changing:
            if self.part.operation.state is not DonorState.BLOCKING_WRITES:
                # Persisted first, so that the next primary blocks the same operations from the beginning.
                await self._enter(DonorState.BLOCKING_WRITES)
            await self._section.block_writes()
        return await self._context.mongod.operation_time()

    async def open_source(
        self, recipient: str, session_id: str, position: Timestamp | None, from_key: bytes | None
    ) -> Timestamp:
        """Open a recipient's source; return the time after which it follows changes. Errors as `CloneSource.start`."""
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
        """Return the source of a recipient; NotYetInitialized if it must be opened again."""
        source = self._sources.get(recipient)
        if source is None or source.session_id != session_id:
            raise CommandError(ErrorCode.NotYetInitialized, "The source of this resharding session is not open")
        return source

    def close(self) -> None:
        """Close all sources."""
        for source in self._sources.values():
            source.close()
        self._sources.clear()

    def shown(self) -> dict[str, Any]:
        """Return the donor's fields of ``currentOp``."""
        return {
            "countWritesDuringCriticalSection": Int64(self._section.held_writes),
            "totalCriticalSectionTimeElapsedSecs": self.times.seconds_in(DonorState.BLOCKING_WRITES),
            "donorState": str(self.part.operation.state),
        }

    async def _enter(self, state: DonorState) -> None:
        await self.part.save(state=state)
        self.times.enter(state)
