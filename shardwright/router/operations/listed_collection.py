"""Properties of a collection from the primary shard of its database: options, collation, and its name by UUID.

Only the primary shard has all collections of a database. It is therefore queried for the collection with the UUID of a
CollectionUUIDMismatch.
"""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.router.operations.operation import CommandHandler, Operation
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.reads.find_arguments import collation_of
from shardwright.router.replies.reply_builder import Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply
from shardwright.wire.rawbson import decode_document, encode_document, find
from shardwright.wire.transport.client import response_body


async def listed_collection(operation: Operation, routing: CollectionRouting) -> Mapping[str, Any] | None:
    """Return the ``listCollections`` entry of a collection, None if it does not exist."""
    db, _, name = routing.namespace.partition(".")
    listing = {"listCollections": 1, "filter": {"name": name}}
    reply = await operation.context.sender.command(routing.primary, db, listing, may_repeat=True)
    entries: list[dict[str, Any]] = reply["cursor"]["firstBatch"]
    return entries[0] if entries else None


SIMPLE: Final[Mapping[str, Any]] = {"locale": "simple"}


async def effective_collation(operation: Operation, routing: CollectionRouting | None) -> Mapping[str, Any]:
    """Return the collation of an aggregation, else its collection's default, else the simple one.

    Args:
        routing: of its collection; None without an existing collection.

    Raises:
        CommandError: TypeMismatch; or the shard of an unsharded collection did not answer.
    """
    given = collation_of(operation.request)
    if given or routing is None:
        return given or SIMPLE
    if routing.table is not None:
        return routing.table.collection.default_collation or SIMPLE
    listed = await listed_collection(operation, routing) or {}
    collation: Mapping[str, Any] = listed.get("options", {}).get("collation", SIMPLE)
    return collation


COLLECTION_UUID: Final = b"collectionUUID"
_ACTUAL: Final = "actualCollection"


def naming_actual_collection(handler: CommandHandler) -> CommandHandler:
    """Wrap a handler for requests with `COLLECTION_UUID`, to complete errors with ``actualCollection``."""

    async def handle(operation: Operation) -> Reply:
        try:
            result = await handler(operation)
        except CommandError as error:
            if error.code != ErrorCode.CollectionUUIDMismatch:
                raise
            extra = await _completed(operation, error.extra)
            raise CommandError(error.code, error.message, labels=error.labels, extra=extra) from error
        if not isinstance(result, bytes):
            return result
        return await _completed_reply(operation, result)

    return handle


async def _completed_reply(operation: Operation, frame: bytes) -> bytes:
    body = response_body(frame)
    if find(body, b"writeErrors") is None and find(body, b"collectionUUID") is None:
        return frame
    document: dict[str, Any] = decode_document(body)
    errors = [each for each in (document, *document.get("writeErrors", ())) if _is_incomplete(each)]
    for error in errors:
        error.update(await _completed(operation, error))
    return reply(operation.response_to, encode_document(document)) if errors else frame


def _is_incomplete(error: Mapping[str, Any]) -> bool:
    return error.get("code") == ErrorCode.CollectionUUIDMismatch and error.get(_ACTUAL) is None


async def _completed(operation: Operation, fields: Mapping[str, Any]) -> Mapping[str, Any]:
    """Add the name of the collection to the fields of an error; None if it cannot be determined."""
    if fields.get(_ACTUAL) is not None or COLLECTION_UUID.decode() not in fields:
        return fields
    context, db = operation.context, fields["db"]
    try:
        database = await context.routing.database(db)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        return fields
    listing = {"listCollections": 1, "filter": {"info.uuid": fields[COLLECTION_UUID.decode()]}}
    found = await context.sender.command(database.primary, db, listing, may_repeat=True)
    names = [each["name"] for each in found["cursor"]["firstBatch"]]
    return {**fields, _ACTUAL: names[0] if names else None}
