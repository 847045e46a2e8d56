"""A cursor of the local mongod that is read at intervals, and holds no connection in between."""

from collections.abc import Mapping
from typing import Any

import bson
from bson.int64 import Int64

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.sharding.namespace import Namespace
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import array_documents, decode_document, decode_value, index
from shardwright.wire.transport.client import response_body


class PooledCursor:
    """A cursor over raw documents.

    Args:
        mongod: the local mongod.
        namespace: the collection.
        command: a ``find`` or ``aggregate`` without ``$db``.

    Attributes:
        is_exhausted: whether there are no more documents.
    """

    def __init__(self, mongod: LocalMongod, namespace: Namespace, command: Mapping[str, Any]) -> None:
        self.is_exhausted = False
        self._mongod = mongod
        self._namespace = namespace
        self._next = dict(command)

    @classmethod
    def find(cls, mongod: LocalMongod, namespace: Namespace, arguments: Mapping[str, Any]) -> "PooledCursor":
        """The cursor of a ``find`` with these arguments."""
        return cls(mongod, namespace, {"find": namespace.collection, **arguments})

    async def next_batch(self) -> list[bytes]:
        """The next documents; none only at the end.

        Raises:
            CommandError: mongod refuses, or the cursor was killed.
            BackendError: mongod does not answer.
        """
        while not self.is_exhausted:
            body = bson.encode({**self._next, "$db": self._namespace.db})
            reply = response_body(await self._mongod.pool.exchange(op_msg(body, request_id=next_request_id())))
            fields = index(reply)
            if b"cursor" not in fields:
                failure: dict[str, Any] = decode_document(reply)
                raise CommandError.from_reply(failure)
            cursor = index(reply, fields[b"cursor"][2])
            cursor_id = decode_value(reply, cursor[b"id"])
            self.is_exhausted = not cursor_id
            self._next = {"getMore": Int64(cursor_id), "collection": self._namespace.collection}
            documents = array_documents(reply, cursor.get(b"nextBatch") or cursor[b"firstBatch"])
            if documents:
                return documents
        return []


async def all_documents(mongod: LocalMongod, namespace: Namespace, arguments: Mapping[str, Any]) -> list[bytes]:
    """All documents that a ``find`` returns.

    Raises:
        CommandError: mongod refuses, or the cursor was killed.
        BackendError: mongod does not answer.
    """
    cursor, documents = PooledCursor.find(mongod, namespace, arguments), list[bytes]()
    while batch := await cursor.next_batch():
        documents += batch
    return documents
