"""Finding out what an update would do, in a transaction on the shard's mongod that is never committed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

import bson
import trio
from bson.binary import Binary

from daemon.sidecar.mongod import LocalMongod
from shardd.exact_documents import only_this_one
from sharding.namespace import Namespace
from wire.errors import BackendError, CommandError
from wire.message import next_request_id, op_msg
from wire.rawbson import (
    EMPTY_DOCUMENT,
    OBJECT,
    Span,
    array_documents,
    decode_document,
    decode_value,
    find,
    index,
    raw_document,
    wrap_value,
)
from wire.transport.client import response_body

_ATTEMPTS_MAX: Final = 10
_BACKOFF_SECONDS: Final = 0.01
_TRANSIENT: Final = "TransientTransactionError"
CAUSED_BY: Final = "Plan executor error during findAndModify :: caused by :: "
"""What mongod puts before the errors of a ``findAndModify`` and not before those of an ``update``."""


@dataclass(frozen=True, slots=True)
class Preview:
    """One document before and after an update. Without ``before`` it would be inserted; without both, none matches."""

    before: bytes | None
    after: bytes | None


class UpdatePreviews:
    """Previews on one mongod."""

    def __init__(self, mongod: LocalMongod) -> None:
        self._mongod = mongod
        # Sessions that are not in use now, with the next transaction number of each.
        self._sessions: list[tuple[dict[str, Any], int]] = []

    async def preview(self, namespace: Namespace, modification: Mapping[str, Any]) -> Preview:
        """What a ``findAndModify`` would do.

        Args:
            namespace: the collection.
            modification: its arguments ``query``, ``update``, ``upsert``, ``sort`` and so on.

        Raises:
            CommandError: it would fail; or WriteConflict and the like, others keep changing the document.
        """
        attempt = 1
        while True:
            lsid, number = self._sessions.pop() if self._sessions else ({"id": Binary.from_uuid(uuid4())}, 1)
            transaction = {"lsid": lsid, "txnNumber": bson.Int64(number), "autocommit": False}
            try:
                return await self._preview(namespace, modification, transaction)
            except CommandError as error:
                is_transient = _TRANSIENT in error.labels
                # Of the transaction the client knows nothing.
                error.labels = tuple(label for label in error.labels if label != _TRANSIENT)
                if not is_transient or attempt == _ATTEMPTS_MAX:
                    raise
            finally:
                self._sessions.append((lsid, number + 1))
            # Somebody else has just changed the document; their transaction is over in a moment.
            await trio.sleep(_BACKOFF_SECONDS * attempt)
            attempt += 1

    async def _preview(
        self, namespace: Namespace, modification: Mapping[str, Any], transaction: Mapping[str, Any]
    ) -> Preview:
        try:
            command = {
                "findAndModify": namespace.collection,
                **modification,
                "new": False,
                "startTransaction": True,
                **transaction,
            }
            reply = await self._run(namespace.db, command)
            fields = index(reply)
            value = fields.get(b"value")
            before = reply[value[2] : value[3]] if value is not None and value[0] == OBJECT else None
            identity = before if before is not None else _upserted(reply, fields)
            if identity is None:
                return Preview(None, None)
            query = raw_document(only_this_one(EMPTY_DOCUMENT, identity, is_collated=True))
            found = await self._run(namespace.db, {"find": namespace.collection, "filter": query, **transaction})
            cursor = index(found, index(found)[b"cursor"][2])
            return Preview(before, array_documents(found, cursor[b"firstBatch"])[0])
        finally:
            with trio.CancelScope(shield=True), trio.move_on_after(1):
                await self._abort(transaction)

    async def _abort(self, transaction: Mapping[str, Any]) -> None:
        try:
            await self._run("admin", {"abortTransaction": 1, **transaction})
        except (CommandError, BackendError):
            return  # it is not there any more, which is as good

    async def _run(self, db: str, command: Mapping[str, Any]) -> bytes:
        body = bson.encode({**command, "$db": db})
        reply = response_body(await self._mongod.pool.exchange(op_msg(body, request_id=next_request_id())))
        ok = find(reply, b"ok")
        if ok is None or not decode_value(reply, ok):
            failure: dict[str, Any] = decode_document(reply)
            raise CommandError.from_reply(failure)
        return reply


def _upserted(reply: bytes, fields: Mapping[bytes, Span]) -> bytes | None:
    """``{_id}`` of the document that a ``findAndModify`` inserted, if it did."""
    upserted = find(reply, b"upserted", fields[b"lastErrorObject"][2])
    return None if upserted is None else wrap_value(upserted[0], reply[upserted[2] : upserted[3]], b"_id")
