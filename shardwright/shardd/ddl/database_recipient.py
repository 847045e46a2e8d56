"""The recipient of a database, as the coordinator of ``movePrimary`` sees it."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.shardd.context.other_shards import send_to_shard
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.ddl.moved_database import MovingCollection
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.rawbson import raw_document
from shardwright.wire.transport.cursor import DecodedCursor

_STEADY: Final = frozenset({"steady", "finished"})


class DatabaseRecipient:
    """Sends commands to the recipient of one attempt.

    Args:
        context: this shard daemon's context.
        db: the database.
        shard_id: the recipient.
        move_id: identifies the attempt.
    """

    def __init__(self, context: ShardContext, db: str, shard_id: str, move_id: UUID) -> None:
        self._context = context
        self._db = db
        self._shard_id = shard_id
        self._move = {"moveId": Binary.from_uuid(move_id), "fromShard": context.require_identity().shard_name}

    async def wait_ready(self) -> None:
        """Wait until the shard has dropped what it had as a former primary shard of the database.

        Raises:
            CommandError: ConflictingOperationInProgress, that takes too long; or the shard could not be reached.
        """
        await self._send({"_shardsvrMovePrimaryReady": 1})

    async def present(self) -> dict[str, UUID | None]:
        """The names of the collections and views of the database that the shard has, with the UUIDs of collections.

        Raises:
            CommandError: the shard refused, or could not be reached.
        """
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
        """Have a round of collections copied.

        Args:
            number: the number of the round, from 1.
            collections: what to copy.
            gone: what of earlier rounds is to be dropped before.
            views: all views.

        Raises:
            CommandError: the shard refused, or could not be reached.
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
        """Whether the copy is complete up to a few changes; waits up to a second for that.

        Raises:
            CommandError: why the copy failed; or the shard could not be reached.
        """
        reply = await self._send({"_shardsvrMovePrimaryStatus": 1})
        return reply["state"] in _STEADY

    async def finish(self, number: int, after: Timestamp) -> Timestamp:
        """Have the last changes applied; on return a majority of the shard has the complete copy.

        Args:
            number: the number of the last round.
            after: a time that later writes on the shard are to come after.

        Returns:
            A time not earlier than that of any write of the copy, nor than ``after``.

        Raises:
            CommandError: why the copy failed; or the shard could not be reached.
        """
        reply = await self._send({"_shardsvrMovePrimaryFinish": 1, "round": number, "after": after})
        done: Timestamp = reply["operationTime"]
        return max(after, done)

    async def end(self, dropped: Sequence[Mapping[str, Any]] = (), dropped_views: Collection[str] = ()) -> None:
        """End the attempt, and drop what it has copied. May be repeated; a shard that has been removed needs nothing.

        Args:
            dropped: the copies, each with its ``ns`` and ``uuid``.
            dropped_views: namespaces of the views.

        Raises:
            CommandError: the shard refused, or could not be reached.
        """
        end = {"_shardsvrMovePrimaryEnd": 1, "dropped": list(dropped), "droppedViews": list(dropped_views)}
        try:
            await self._send(end)
        except CommandError as error:
            if error.code != ErrorCode.ShardNotFound:
                raise

    async def create_empty(self, collection: str, description: Mapping[str, Any]) -> None:
        """Create a sharded collection of which the shard owns no chunks, as the primary shard has all of them.

        Raises:
            CommandError: InvalidUUID, the shard has another collection of that name; or it could not be reached.
        """
        await self._send({"_shardsvrCreateCollectionParticipant": collection, **description})

    async def _send(self, command: Mapping[str, Any]) -> dict[str, Any]:
        return await send_to_shard(self._context, self._shard_id, self._db, {**command, **self._move})
