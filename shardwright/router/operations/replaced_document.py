"""Moving a document to the shard of its new key by a delete and an insert, as MongoDB's own routers do.

This is for shards that do not execute such an update themselves (see `sharding.owner_changes`), that is genuine ones:
they answer WouldChangeOwningShard, and the transaction goes on.
"""

from collections.abc import Callable
from typing import Any, Final

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.router.transactions.session_fields import AUTOCOMMIT_ELEMENT
from shardwright.router.writes.messages import message_with_versions
from shardwright.sharding.owner_changes import OwnerChange
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import append, encode_document, raw_document
from shardwright.wire.request import Request

_NO_HISTORY: Final = -1
_BYPASS: Final = b"bypassDocumentValidation"
_CARRIED: Final = (b"mayBypassWriteBlocking",)
_SECOND_ID: Final = (
    "Failed to update document's shard key field. There is either an orphan for this document or _id for this "
    "collection is not globally unique."
)


class OwnerRefusedError(Exception):
    """A shard has not executed a statement of a transaction, because its document would belong to another shard.

    Attributes:
        change: what it would have done.
    """

    def __init__(self, change: OwnerChange) -> None:
        super().__init__()
        self.change = change


def raise_if_refused(reply: ShardReply) -> None:
    """Raise `OwnerRefusedError` for the reply to the only statement of a command in a transaction."""
    if reply.error is not None and reply.error.code == ErrorCode.WouldChangeOwningShard:
        change = OwnerChange.read(reply.body, reply.fields)
        if change is not None:
            raise OwnerRefusedError(change)


async def replace_document(operation: Operation, change: OwnerChange) -> bool:
    """Delete a document and insert it where it belongs; returns False if it is no longer there.

    Raises:
        CommandError: one of them has failed.
    """
    if not change.is_upsert and not await _delete(operation, change.before):
        return False
    await insert_document(operation, change.after)
    return True


async def insert_document(operation: Operation, document: bytes) -> None:
    """Insert a raw document on the shard that owns its key; the statement has no history.

    Raises:
        CommandError: it cannot be inserted.
    """
    request = operation.request
    command: dict[str, Any] = {"insert": request.collection, "documents": [raw_document(document)]}
    if _BYPASS in request.fields:
        command[_BYPASS.decode()] = request.get(_BYPASS)
    reply = await _send(operation, document, lambda _: command)
    if errors := reply.get(b"writeErrors", ()):
        raise _insertion_error(errors[0])


async def _delete(operation: Operation, document: bytes) -> bool:
    """Delete a document by its key and its ``_id``, which simple collation tells from all others."""

    def command(routing: CollectionRouting) -> dict[str, Any]:
        query = document if routing.table is None else routing.table.key_pattern.query_of_document(document)
        item = {"q": raw_document(query), "limit": 1, "collation": {"locale": "simple"}}
        return {"delete": operation.request.collection, "deletes": [item]}

    reply = await _send(operation, document, command)
    if errors := reply.get(b"writeErrors", ()):
        raise CommandError.from_reply(errors[0])
    return bool(reply.get(b"n"))


async def _send(
    operation: Operation, document: bytes, command: Callable[[CollectionRouting], dict[str, Any]]
) -> ShardReply:
    """Send a statement of the same transaction to the shard that owns the key of a document."""

    def part_with(routing: CollectionRouting) -> Operation:
        body = encode_document({**command(routing), "stmtIds": [_NO_HISTORY], "$db": operation.request.db})
        carried = AUTOCOMMIT_ELEMENT + raw_elements(operation.request, _CARRIED)
        frame = op_msg(append(body, carried), request_id=operation.request.message.request_id)
        return operation.part(Request(OpMsg(frame)))

    async def attempt(routing: CollectionRouting) -> ShardReply:
        part, shard = part_with(routing), routing.primary
        if routing.table is not None:
            shard = routing.table.shard_for_key(routing.table.key_pattern.key_bytes_of_document(document))
        return await send_to_one(part, shard, message_with_versions(part.request.message, routing.versions_for(shard)))

    reply = await with_routing(operation, operation.namespace, attempt)
    reply.raise_for_error()
    return reply


def _insertion_error(error: dict[str, Any]) -> CommandError:
    extra = {name: value for name, value in error.items() if name not in ("index", "code", "errmsg")}
    message = f"During insert stage of updating a shard key :: caused by :: {error.get('errmsg', '')}"
    if error["code"] == ErrorCode.DuplicateKey and "_id" in error.get("keyPattern", ()):
        message = f"{_SECOND_ID} :: caused by :: {message}"
    return CommandError(int(error["code"]), message, extra=extra)
