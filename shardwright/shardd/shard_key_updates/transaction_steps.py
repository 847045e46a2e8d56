"""Several commands in place of one that is part of a client's transaction; the first one may have to start it there."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.daemon.sidecar.user_write_block import BYPASS
from shardwright.shardd.shard_key_updates.exact_documents import only_with_id
from shardwright.shardd.shard_key_updates.key_changing_request import KeyChangingRequest
from shardwright.sharding.operation_session import AUTOCOMMIT, START_TRANSACTION, TXN_NUMBER
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    append,
    array_documents,
    decode_document,
    decode_value,
    encode_document,
    find,
    index,
    raw_document,
    without,
)
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.cursor import RawCursor

_STARTING: Final = frozenset({START_TRANSACTION, b"readConcern"})
_CARRIED: Final = (b"lsid", TXN_NUMBER, AUTOCOMMIT, BYPASS.encode())
"""What each command has in common with the request."""
_NO_HISTORY: Final = -1
"""The statement id of a statement that is not remembered."""


class TransactionSteps:
    """The commands of one request."""

    def __init__(self, changing: KeyChangingRequest) -> None:
        self._changing = changing
        self._has_begun = False
        body, fields = changing.request.body, changing.request.fields
        self._session = b"".join(body[fields[name][1] : fields[name][3]] for name in _CARRIED if name in fields)
        self._start = b"".join(body[fields[name][1] : fields[name][3]] for name in _STARTING if name in fields)

    async def run(self, body: bytes, request_id: int) -> bytes:
        """Run the request itself, or what takes its place; returns the frame of mongod's reply.

        Args:
            body: with all fields of a transaction that the request has.
            request_id: which the reply answers.
        """
        if self._has_begun:
            body = without(body, _STARTING)
        self._has_begun = True
        return await self._changing.exchange(body, request_id)

    async def find_one(self, query: bytes, options: Mapping[str, Any]) -> bytes | None:
        """The first document that matches, as the transaction sees it.

        Raises:
            CommandError: the query is wrong; or the transaction conflicts with others.
        """
        reply = await self._command(
            {"find": self._collection, "filter": raw_document(query), **options, "limit": 1, "singleBatch": True}
        )
        cursor = index(reply, index(reply)[b"cursor"][2])
        return next(iter(array_documents(reply, cursor[b"firstBatch"])), None)

    async def find_all(self, find: Mapping[str, Any]) -> list[bytes]:
        """All documents of a find, as the transaction sees them.

        Raises:
            CommandError: see `find_one`.
        """
        return await RawCursor(
            self._send, self._changing.namespace.db, {"find": self._collection, **find}
        ).all_documents()

    async def find_same(self, document: bytes) -> bytes | None:
        """The document with the ``_id`` of this one."""
        return await self.find_one(only_with_id(EMPTY_DOCUMENT, document, is_collated=True), {})

    async def delete(self, document: bytes) -> None:
        """Delete the document with the ``_id`` of this one; the statement has no history.

        Raises:
            CommandError: the transaction conflicts with others.
        """
        query = only_with_id(EMPTY_DOCUMENT, document, is_collated=True)
        await self._command(
            {
                "delete": self._collection,
                "deletes": [{"q": raw_document(query), "limit": 1}],
                "stmtIds": [_NO_HISTORY],
            }
        )

    async def restore(self, document: bytes) -> None:
        """Insert a document that was deleted; the statement has no history.

        Raises:
            CommandError: the transaction conflicts with others.
        """
        await self._command(
            {
                "insert": self._collection,
                "documents": [raw_document(document)],
                "bypassDocumentValidation": True,
                "stmtIds": [_NO_HISTORY],
            }
        )

    async def abort(self) -> None:
        """Abort the transaction, as mongod does when a statement fails."""
        body = append(encode_document({"abortTransaction": 1, "$db": "admin"}), self._session)
        await self._changing.exchange(body, next_request_id())

    async def _command(self, command: Mapping[str, Any]) -> bytes:
        body = encode_document({**command, "$db": self._changing.namespace.db})
        reply = response_body(await self._send(op_msg(body, request_id=next_request_id())))
        ok = find(reply, b"ok")
        if ok is None or not decode_value(reply, ok):
            raise CommandError.from_reply(decode_document(reply))
        return reply

    async def _send(self, frame: bytes) -> bytes:
        start = b"" if self._has_begun else self._start
        self._has_begun = True
        message = OpMsg(frame)
        return await self._changing.exchange(append(message.body, start + self._session), message.request_id)

    @property
    def _collection(self) -> str:
        return self._changing.namespace.collection
