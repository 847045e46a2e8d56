"""A donor that hands out what a test gives it, and records the commands it gets."""

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID, uuid4

from bson import Int64, Timestamp
from bson.binary import Binary

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from tests.configd.fake_shard import FakeShard

Document = Mapping[str, Any]


class FakeDonor(FakeShard):
    """A shard with one member, as far as a recipient can see.

    Attributes:
        uuid: the collection's UUID, whatever its name.
        options: the collection's options.
        indexes: specifications of all its indexes except the one on ``_id``.
        documents: the range's documents, in the order of the shard key.
        batch_documents: number of documents in a batch.
        batches_before_hold: number of batches that are handed out while ``_migrateClone`` is held.
        from_key: the value of the shard key from which documents are handed out.
        modifications: batches that have yet to be handed out, each of ``_id`` values and of documents.
        history: documents of session history that have yet to be handed out.
        position: the position in the oplog; every batch of modifications advances it.
        broken_connections: number of connections still to be broken in place of a reply, by command.
        session_id: the only migration session id that is served; None for any.
    """

    def __init__(self, set_name: str, address: str) -> None:
        super().__init__(set_name, address)
        self.reset()

    def reset(self) -> None:
        """Reset it, with another collection."""
        self.uuid: UUID = uuid4()
        self.options: Document = {}
        self.indexes: Sequence[Document] = [{"v": 2, "key": {"a": 1}, "name": "a_1"}]
        self.documents: Sequence[Document] = []
        self.batch_documents = 1_000
        self.batches_before_hold = 0
        self.from_key: Any = None
        self.key = "a"
        self.modifications: list[tuple[Sequence[Any], Sequence[Document]]] = []
        self.history: list[Document] = []
        self.position = 1
        self.session_id: str | None = None
        self.broken_connections: dict[str, int] = {}
        self._last_mods: tuple[str, int, dict[str, Any]] | None = None
        self.failures.clear()
        self.held.clear()
        self.commands.clear()

    async def handle(self, client: ClientConnection, request: Request) -> bytes | None:
        """See `FakeShard.handle`."""
        reply = await super().handle(client, request)
        if self.broken_connections.get(request.name):
            self.broken_connections[request.name] -= 1
            client.is_finished = True
            return None
        return reply

    def is_held(self, request: Request) -> bool:
        """See `FakeShard.is_held`."""
        if request.name == "_migrateClone" and self.batches_before_hold:
            self.batches_before_hold -= 1
            return False
        return super().is_held(request)

    def answer(self, request: Request) -> Mapping[str, Any]:
        """See `FakeShard.answer`."""
        match request.name:
            case "listCollections":
                return _cursor(self._collection(request.document["filter"]["name"]))
            case "listIndexes":
                return _cursor({"v": 2, "key": {"_id": 1}, "name": "_id_"}, *self.indexes)
            case "_migrateClone":
                self._check_session(request)
                return {"objects": self._batch(request.document["number"]), "position": Timestamp(1, 1)}
            case "_transferMods":
                self._check_session(request)
                return self._next_modifications(request.document["sessionId"], request.document["number"])
            case "_getNextSessionMods":
                self._check_session(request)
                history, self.history = self.history, []
                return {"oplog": history}
        return super().answer(request)

    def _collection(self, name: str) -> Document:
        return {
            "name": name,
            "type": "collection",
            "options": self.options,
            "info": {"readOnly": False, "uuid": Binary.from_uuid(self.uuid)},
            "idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"},
        }

    def _check_session(self, request: Request) -> None:
        if self.session_id is not None and request.document["sessionId"] != self.session_id:
            raise CommandError(ErrorCode.NotYetInitialized, "No active migrations were found")

    def _batch(self, number: int) -> Sequence[Document]:
        wanted = [each for each in self.documents if self.from_key is None or each[self.key] >= self.from_key]
        return wanted[number * self.batch_documents : (number + 1) * self.batch_documents]

    def _next_modifications(self, session_id: str, number: int) -> Mapping[str, Any]:
        if self._last_mods is not None and self._last_mods[:2] == (session_id, number):
            return self._last_mods[2]
        deleted, reload = self.modifications.pop(0) if self.modifications else ((), ())
        self.position += bool(deleted or reload)
        reply = {
            "deleted": [{"_id": each} for each in deleted],
            "reload": reload,
            "size": Int64(len(deleted) + len(reload)),
            "position": Timestamp(1, self.position),
        }
        self._last_mods = (session_id, number, reply)
        return reply


def _cursor(*documents: Document) -> Mapping[str, Any]:
    return {"cursor": {"id": Int64(0), "ns": "db.c", "firstBatch": documents}}
