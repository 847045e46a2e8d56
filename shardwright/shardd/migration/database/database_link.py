"""The commands of a database's recipient to its donor; batches are numbered as in a chunk migration."""

from typing import Any
from uuid import UUID

from bson.binary import Binary

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.raw_replies import required_array
from shardwright.shardd.migration.database.collection_source import CollectionChanges
from shardwright.shardd.migration.database.receive_database import ReceiveDatabase
from shardwright.shardd.migration.recipient.donor_link import CloneBatch, DonorConnection
from shardwright.sharding.namespace import Namespace
from shardwright.wire.rawbson import array_documents, decode_value, find

CLONE: str = "_shardsvrMovePrimaryClone"
MODS: str = "_shardsvrMovePrimaryMods"


class DatabaseLink:
    """Sends commands to the donor of one database.

    Attributes:
        history: the connection for the session history.
    """

    def __init__(self, context: ShardContext, request: ReceiveDatabase) -> None:
        whole = request.of_collection(Namespace(request.db))
        self._request = request
        self._documents = DonorConnection(context, whole)
        self._others = DonorConnection(context, whole)
        self.history = DonorConnection(context, whole)
        self._mods_number = 0

    async def clone_batch(self, uuid: UUID, number: int) -> CloneBatch:
        """Fetch a batch of the clone of a collection.

        Args:
            uuid: its UUID on the donor.
            number: the number of the last batch fetched, or the next; they start at 0.

        Raises:
            CommandError: see `DonorConnection.command`; NamespaceNotFound, the collection is gone.
        """
        reply = await self._documents.command(
            "admin", {**self._command(CLONE, number), "collectionUUID": Binary.from_uuid(uuid)}
        )
        busy = find(reply, b"busy")
        is_busy = busy is not None and bool(decode_value(reply, busy))
        return CloneBatch(reply, required_array(reply, b"objects"), None, is_busy)

    async def changes(self) -> tuple[list[CollectionChanges], bool]:
        """Fetch the next changes, which acknowledges the last ones; also returns whether more are queued.

        Raises:
            CommandError: see `DonorConnection.command`.
        """
        reply = await self._others.command("admin", self._command(MODS, self._mods_number))
        self._mods_number += 1
        changes = [_changes(each) for each in array_documents(reply, required_array(reply, b"collections"))]
        queued = find(reply, b"queued")
        return changes, queued is not None and bool(decode_value(reply, queued))

    def close(self) -> None:
        """Close the connections."""
        for connection in (self._documents, self._others, self.history):
            connection.close()

    def _command(self, name: str, number: int) -> dict[str, Any]:
        return {name: self._request.db, "sessionId": self._request.session_id, "number": number}


def _changes(document: bytes) -> CollectionChanges:
    uuid = find(document, b"uuid")
    assert uuid is not None
    deleted, reload = (array_documents(document, required_array(document, name)) for name in (b"deleted", b"reload"))
    return CollectionChanges(UUID(bytes=bytes(decode_value(document, uuid))), deleted, reload)
