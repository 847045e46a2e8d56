"""Copying a database to another shard, for ``movePrimary``: the donor's side, up to the critical section.

`DatabaseCopy` is one attempt, and `DatabaseRecipient` sends its commands to the recipient. The protocols describe the
source, which the room `migration` implements. Collections that clients create, drop or alter during the copy, for
example by ``$out``, are found once writes have been blocked. Then writes are admitted again, and these collections are
copied in another round.

Sharded collections stay on their shards. The new primary shard creates those that it lacks, empty, since a primary
shard has all collections of its database.
"""

from collections.abc import Awaitable, Callable, Collection, Container, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, Protocol
from uuid import UUID

import trio
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.context.fail_point_names import (
    MOVE_PRIMARY_HANG_BEFORE_CRITICAL_SECTION,
    MOVE_PRIMARY_HANG_IN_CRITICAL_SECTION,
)
from shardwright.shardd.context.shard_context import ShardContext, send_to_shard
from shardwright.shardd.local_mongod.local_collections import describe, list_indexes
from shardwright.shardd.metadata.critical_sections import SectionDriver
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import decode_document, encode_document, raw_document
from shardwright.wire.transport.cursor import DecodedCursor


class MovingCollection(Protocol):
    """An unsharded collection on this shard."""

    @property
    def name(self) -> str:
        """The name without the database."""

    @property
    def uuid(self) -> UUID:
        """The UUID on this shard."""

    def to_document(self) -> dict[str, Any]:
        """Return its UUID, options and indexes."""


class MovingDatabase(Protocol):
    """The collections and views of a database that move, at one point in time."""

    @property
    def collections(self) -> Mapping[UUID, MovingCollection]:
        """The unsharded collections, by UUID."""

    @property
    def views(self) -> Mapping[str, bytes]:
        """The documents of ``system.views``, raw, by the namespace of the view."""


class MoveSource(Protocol):
    """The source of a database's documents for the recipient."""

    @property
    def has_changed(self) -> bool:
        """Whether a collection or view may have been created, dropped or altered since `listed` was last called."""

    @property
    def documents_cloned(self) -> int:
        """Number of cloned documents."""

    @property
    def bytes_cloned(self) -> int:
        """Size of the cloned documents in bytes."""

    @property
    def queued_ids(self) -> int:
        """Number of changed documents that remain to be sent."""

    async def listed(self) -> MovingDatabase:
        """List the collections and views that move."""

    def add(self, uuid: UUID) -> None:
        """Begin to serve one of the collections that `listed` last returned."""

    def remove(self, uuid: UUID) -> None:
        """Stop serving a collection."""

    async def wait_followed(self, time: Timestamp) -> None:
        """Return when all changes up to a time have been queued."""

    def copy_of(self, uuid: UUID) -> UUID:
        """Return the UUID of a collection's copy."""


class DatabaseMoves(Protocol):
    """This shard's moves of databases to other shards."""

    def serving(self, db: str, sharded: Container[str], move_id: UUID) -> AbstractAsyncContextManager[MoveSource]:
        """Serve a database to its recipient in the block."""


_STEADY: Final = frozenset({"steady", "finished"})


class DatabaseRecipient:
    """Commands to the recipient of one attempt.

    All methods raise CommandError if the shard refuses or cannot be reached.

    Args:
        move_id: identifies the attempt.
    """

    def __init__(self, context: ShardContext, db: str, shard_id: str, move_id: UUID) -> None:
        self._context = context
        self._db = db
        self._shard_id = shard_id
        self._move = {"moveId": Binary.from_uuid(move_id), "fromShard": context.require_identity().shard_name}

    async def wait_ready(self) -> None:
        """Wait until the shard, possibly a former primary shard, has dropped its old collections of the database.

        Raises ConflictingOperationInProgress if it takes too long.
        """
        await self._send({"_shardsvrMovePrimaryReady": 1})

    async def present(self) -> dict[str, UUID | None]:
        """List the shard's collections and views of the database by name, with the UUIDs of collections."""
        client = await self._context.shard_client(self._shard_id)
        try:
            entries = await DecodedCursor(client.command, self._db, {"listCollections": 1}).all_documents()
        except BackendError as error:
            raise CommandError(ErrorCode.HostUnreachable, f"could not reach shard {self._shard_id}: {error}") from error
        found = {}
        for entry in entries:
            uuid = entry["info"].get("uuid")
            found[entry["name"]] = None if uuid is None else UUID(bytes=bytes(uuid))
        return found

    async def receive(
        self,
        number: int,
        collections: Sequence[MovingCollection],
        gone: Sequence[MovingCollection],
        views: Mapping[str, bytes],
    ) -> None:
        """Start a round of copying.

        Args:
            number: the number of the round, from 1.
            gone: collections of earlier rounds to drop first.
        """
        await self._send(
            {
                "_shardsvrMovePrimaryReceive": 1,
                "round": number,
                "collections": [each.to_document() for each in collections],
                "gone": [{"ns": f"{self._db}.{each.name}", "uuid": Binary.from_uuid(each.uuid)} for each in gone],
                "views": list(map(raw_document, views.values())),
            }
        )

    async def is_steady(self) -> bool:
        """Whether the copy is complete up to a few changes, after up to a second; the copy's error if it failed."""
        reply = await self._send({"_shardsvrMovePrimaryStatus": 1})
        return reply["state"] in _STEADY

    async def finish(self, number: int, after: Timestamp) -> Timestamp:
        """Apply the last changes; on return a majority of the shard has the complete copy.

        Args:
            number: the number of the last round.
            after: a time before all later writes on the shard.

        Returns:
            A time not earlier than any write of the copy, nor than ``after``.

        Raises:
            CommandError: the error with which the copy failed.
        """
        reply = await self._send({"_shardsvrMovePrimaryFinish": 1, "round": number, "after": after})
        done: Timestamp = reply["operationTime"]
        return max(after, done)

    async def end(self, dropped: Sequence[Mapping[str, Any]] = (), dropped_views: Collection[str] = ()) -> None:
        """End the attempt, and drop its copies. May be repeated; does nothing if the shard has been removed.

        Args:
            dropped: the copies, each with its ``ns`` and ``uuid``.
        """
        end = {"_shardsvrMovePrimaryEnd": 1, "dropped": list(dropped), "droppedViews": list(dropped_views)}
        try:
            await self._send(end)
        except CommandError as error:
            if error.code != ErrorCode.ShardNotFound:
                raise

    async def create_empty(self, collection: str, description: Mapping[str, Any]) -> None:
        """Create a sharded collection without chunks, since a primary shard has all collections of its database.

        Raises InvalidUUID if the shard has another collection of that name.
        """
        await self._send({"_shardsvrCreateCollectionParticipant": collection, **description})

    async def _send(self, command: Mapping[str, Any]) -> dict[str, Any]:
        return await send_to_shard(self._context, self._shard_id, self._db, {**command, **self._move})


logger = get_logger("shardd.move_primary")

FINISH_SECONDS_MAX: Final = 30.0
"""The longest time that writes wait for the last changes."""

_ROUNDS_MAX: Final = 50
_CREATIONS_SECONDS_MAX: Final = 30.0
"""The longest wait for index builds, during which other changes to the database wait for the move."""

_BLOCK_SECONDS_MAX: Final = 300.0
"""The longest time, once everything has been copied, that writes and changes to collections may delay the commit."""

Record = Callable[[Sequence[Mapping[str, Any]], Sequence[str]], Awaitable[None]]
"""Persists the collections and views that the recipient may have copied."""


class DatabaseCopy:
    """One attempt to copy a database.

    Args:
        record: called before the recipient creates anything.
    """

    def __init__(
        self,
        context: ShardContext,
        db: str,
        source: MoveSource,
        recipient: DatabaseRecipient,
        section: SectionDriver[DatabaseState],
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
                        ErrorCode.LockBusy, f"running writes kept the primary shard of {self._db} from being changed"
                    )
                logger.info("Writes in progress are delaying a move of a database", db=self._db)
            # Pause also after changes that leave nothing to copy, because they cause no further round.
            await backoff.pause()
        raise CommandError(
            ErrorCode.ConflictingOperationInProgress, f"the collections of {self._db} do not cease to change"
        )

    async def _wait_index_creations(self) -> None:
        """Wait until no indexes of sharded collections are being created.

        The primary shard coordinates index creations, and undoes failed ones. As a former primary shard it would drop
        indexes that the next one has created since.

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
        """Start a round for everything that was created or altered since the last one."""
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
        """Complete the copy while writes are blocked; return None if another round is needed."""
        with trio.move_on_after(FINISH_SECONDS_MAX):
            last = await self._context.mongod.operation_time()
            await self._source.wait_followed(last)
            if self._source.has_changed:
                return None
            return await self._recipient.finish(self._round, last)
        raise CommandError(
            ErrorCode.ExceededTimeLimit, f"the last changes to {self._db} could not be copied within a short time"
        )


def _is_same(one: MovingCollection, other: MovingCollection | None) -> bool:
    return other is not None and encode_document(one.to_document()) == encode_document(other.to_document())


async def sharded_namespaces(context: ShardContext, db: str) -> frozenset[str]:
    """Read the namespaces of a database's sharded collections."""
    catalog = await context.catalog()
    # The slash is the character after the dot, so it bounds all names with the prefix.
    documents = await catalog.find("collections", {"_id": {"$gte": f"{db}.", "$lt": f"{db}/"}})
    return frozenset(str(decode_document(document)["_id"]) for document in documents)


async def create_sharded_on(context: ShardContext, recipient: DatabaseRecipient, sharded: Collection[str]) -> None:
    """Create the sharded collections that the recipient lacks, without documents."""
    present = await recipient.present() if sharded else {}
    for namespace in map(Namespace.parse, sorted(sharded)):
        local = await describe(context.mongod, namespace)
        if namespace.collection in present or local is None or local.uuid is None:
            continue
        description: dict[str, Any] = {
            "collectionUUID": Binary.from_uuid(local.uuid),
            "options": {name: value for name, value in local.options.items() if name != "uuid"},
            "indexes": [each for each in await list_indexes(context.mongod, namespace) if each["name"] != "_id_"],
        }
        if local.id_index is not None:
            description["idIndex"] = local.id_index
        await recipient.create_empty(namespace.collection, description)
