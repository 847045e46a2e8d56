"""What a donor hands over to one recipient: its documents, their changes, and the history of retryable writes.

It is the source of a migration whose range is the whole key space. Of its documents only those are handed over that
the donor owns by the present key, and the recipient by the new one; any other document is reported as gone. The source
is lost with the daemon; then the recipient opens another one where it has come to.
"""

from typing import Final
from uuid import UUID

import trio
from bson.timestamp import Timestamp

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.migration.source.clone_source import CloneSource
from shardwright.shardd.session_history.donor_history import DonorHistory
from shardwright.shardd.session_history.oplog_history import HistoryReader
from shardwright.sharding.catalog.reads import read_routing
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding.conflict_rules import identity_of
from shardwright.sharding.resharding.ownership import Ownership
from shardwright.sharding.resharding.participation import Participation
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.resharding.donor")

_DOCUMENTS_AT_A_TIME: Final = 200
"""How many documents are looked at without a pause, which takes some 5 ms."""


class DonorSource:
    """What one recipient pulls.

    Args:
        context: this shard daemon's context.
        ownership: who owns documents before and after.
        source_table: the routing table by the present key.
        session_id: identifies this source.
        recipient: id of the recipient.

    Attributes:
        session_id: see above.
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
        """How many changed documents have still to be handed out."""
        return self._source.queued_ids

    async def start(self, position: Timestamp | None, from_key: bytes | None) -> Timestamp:
        """Open it; see `CloneSource.start`."""
        followed = await self._source.start(position=position, from_key=from_key)
        # Only now, so that it misses nothing that the oplog's cursor has not seen either.
        mongod, namespace, uuid, pattern, whole = self._scope
        self.history = DonorHistory(mongod, HistoryReader(namespace, uuid.bytes, pattern, whole))
        return followed

    async def run(self) -> None:
        """Read ahead until `close`; a failure is reported to the recipient when it asks the next time."""
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
        """The next documents to hand over, and the shard key up to which the clone has come; None at its end.

        Raises:
            CommandError: see `CloneSource.next_clone_batch`; ShardKeyNotFound, a document has an array in its new key.
        """
        array = bytes(await self._source.next_clone_batch(number))
        documents = rawbson.array_documents(array, (rawbson.ARRAY, 0, 0, len(array)))
        if not documents:
            return [], None
        return await self._handed_over(documents), self._ownership.source_key_of(documents[-1])

    async def next_mods(self, number: int, since: Timestamp | None) -> tuple[list[bytes], list[bytes], int, Timestamp]:
        """What has changed: raw ids under which nothing is handed over, documents, the size of both, the position.

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
        """Those of the documents that are handed over; other tasks run in between."""
        kept: list[bytes] = []
        for start in range(0, len(documents), _DOCUMENTS_AT_A_TIME):
            some = documents[start : start + _DOCUMENTS_AT_A_TIME]
            kept += self._ownership.handed_over(some, self._donor, self._recipient)
            await trio.lowlevel.checkpoint()
        return kept


async def read_ownership(context: ShardContext, participation: Participation) -> tuple[RoutingTable, Ownership]:
    """The routing table by the present key, and the owners before and after.

    Raises:
        CommandError: NoSuchReshardCollection, the catalog does not have this operation any more.
    """
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
