"""One attempt to copy a database to another shard, up to the critical section in which the copy is complete.

Collections that clients create, drop or alter meanwhile, for example by ``$out``, are found when writes have been
blocked; then writes go on, and these collections are copied in a further round.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import trio
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.context.fail_point_names import (
    MOVE_PRIMARY_HANG_BEFORE_CRITICAL_SECTION,
    MOVE_PRIMARY_HANG_IN_CRITICAL_SECTION,
)
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.database_recipient import DatabaseRecipient
from shardwright.shardd.ddl.move_section import MoveSection
from shardwright.shardd.ddl.moved_database import MoveSource, MovingCollection, MovingDatabase
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import encode_document

if TYPE_CHECKING:
    from uuid import UUID

logger = get_logger("shardd.move_primary")

FINISH_SECONDS_MAX: Final = 30.0
"""How long writes may wait for the last changes."""

_ROUNDS_MAX: Final = 50
_CREATIONS_SECONDS_MAX: Final = 30.0
"""How long the move waits for creations of indexes. Other changes to the database wait for it, too."""

_BLOCK_SECONDS_MAX: Final = 300.0
"""How long, once everything has been copied, writes and changes to collections may keep the move from its end."""


Record = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], Awaitable[None]]
"""Persists which collections and views the recipient may have a copy of."""


class DatabaseCopy:
    """One attempt.

    Args:
        context: this shard daemon's context.
        db: the database.
        source: hands out the data.
        recipient: the recipient.
        section: the critical section.
        record: called before the recipient creates anything.
    """

    def __init__(
        self,
        context: ShardContext,
        db: str,
        source: MoveSource,
        recipient: DatabaseRecipient,
        section: MoveSection,
        record: Record,
    ) -> None:
        self._context = context
        self._db = db
        self._source = source
        self._recipient = recipient
        self._section = section
        self._record = record
        self._round = 0
        self._copied: dict[UUID, MovingCollection] = {}
        self._views: Mapping[str, bytes] = {}

    async def run(self) -> Timestamp:
        """Copy the database. On return writes are blocked, and a majority of the recipient has everything.

        Returns:
            The time of the move: no earlier than any write on either shard, and before all later ones on the recipient.

        Raises:
            CommandError: NamespaceExists, the recipient has a collection of the same name; LockTimeout, LockBusy or
                ConflictingOperationInProgress, transactions, writes or changes to collections do not end; or an error
                of either side.
            BackendError: the local mongod does not answer.
        """
        deadline: float | None = None
        backoff = Backoff(first_seconds=0.1, seconds_max=10.0)
        await self._wait_index_creations()  # a failure later on would cost the copy
        while self._round <= _ROUNDS_MAX:
            await self._copy_missing(await self._source.listed())
            while not await self._recipient.is_steady():
                pass
            await self._wait_index_creations()
            deadline = deadline or trio.current_time() + _BLOCK_SECONDS_MAX
            await self._context.fail_points.hang_while(MOVE_PRIMARY_HANG_BEFORE_CRITICAL_SECTION)
            if await self._section.try_block_writes():
                moved_at = await self._finish()
                if moved_at is not None:
                    await self._context.fail_points.hang_while(MOVE_PRIMARY_HANG_IN_CRITICAL_SECTION)
                    return moved_at
                self._section.leave()
                if trio.current_time() > deadline:
                    break
                logger.info("Changes to collections are delaying a move of a database", db=self._db)
            else:
                if trio.current_time() > deadline:
                    raise CommandError(
                        ErrorCode.LockBusy, f"writes under way kept the primary shard of {self._db} from being changed"
                    )
                logger.info("Writes in progress are delaying a move of a database", db=self._db)
            # Changes that leave nothing to copy behind make no further round.
            await backoff.pause()
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress, f"the collections of {self._db} do not cease to change"
        )

    async def _wait_index_creations(self) -> None:
        """Wait until no indexes of sharded collections are being created.

        The present primary shard leads them, and undoes them if they fail. If it did so as a former one, it would drop
        what the next one has created since.

        Raises:
            CommandError: ConflictingOperationInProgress, a creation takes long. Its end may need a command that has to
                wait for the move.
        """
        creations = self._context.index_creations
        if not creations.is_any_of_database(self._db):
            return
        logger.info("Creations of indexes are delaying a move of a database", db=self._db)
        with trio.move_on_after(_CREATIONS_SECONDS_MAX) as patience:
            await creations.wait_ended_of_database(self._db)
        if patience.cancelled_caught:
            raise CommandError(
                ErrorCode.ConflictingOperationInProgress,
                f"indexes of sharded collections of {self._db} are being created; move it when they are built",
            )

    async def _copy_missing(self, moved: MovingDatabase) -> None:
        """Have everything copied that has been created or altered since the last round."""
        gone = [each for uuid, each in self._copied.items() if not _is_same(each, moved.collections.get(uuid))]
        for each in gone:
            self._source.remove(each.uuid)
            del self._copied[each.uuid]
        new = [each for uuid, each in moved.collections.items() if uuid not in self._copied]
        if self._round and not new and not gone and moved.views == self._views:
            return
        altered = {each.name for each in gone}
        await self._check_free(
            {
                *(each.name for each in new if each.name not in altered),
                *(name.partition(".")[2] for name in moved.views if name not in self._views),
            }
        )
        self._copied |= {each.uuid: each for each in new}
        self._views = moved.views
        await self._record([self._copy_document(each) for each in self._copied.values()], list(moved.views))
        for each in new:
            self._source.add(each.uuid)
        self._round += 1
        await self._recipient.receive(self._round, new, gone, moved.views)

    def _copy_document(self, collection: MovingCollection) -> dict[str, Any]:
        return {
            "ns": f"{self._db}.{collection.name}",
            "uuid": Binary.from_uuid(self._source.copy_of(collection.uuid)),
            "of": Binary.from_uuid(collection.uuid),
        }

    async def _check_free(self, names: set[str]) -> None:
        for name in sorted(names.intersection(await self._recipient.present())):
            raise CommandError(
                ErrorCode.NamespaceExists, f"unsharded collection with same namespace {self._db}.{name} already exists."
            )

    async def _finish(self) -> Timestamp | None:
        """Complete the copy, now that writes are blocked; None if there is something else to copy."""
        with trio.move_on_after(FINISH_SECONDS_MAX):
            last = await self._section.last_write_time()
            await self._source.wait_followed(last)
            if self._source.has_changed:
                return None
            return await self._recipient.finish(self._round, last)
        raise CommandError(
            ErrorCode.ExceededTimeLimit, f"the last changes to {self._db} could not be copied within a short time"
        )


def _is_same(one: MovingCollection, other: MovingCollection | None) -> bool:
    return other is not None and encode_document(one.to_document()) == encode_document(other.to_document())
