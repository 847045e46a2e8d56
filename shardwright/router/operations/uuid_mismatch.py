"""What a shard does not know of a CollectionUUIDMismatch: the name of the collection that has the UUID.

Only the primary shard of a database has all its collections, so it is asked.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, TypeAlias

from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply
from shardwright.wire.rawbson import decode_document, encode_document, find
from shardwright.wire.transport.client import response_body

COLLECTION_UUID: Final = b"collectionUUID"
_ACTUAL: Final = "actualCollection"


_Handler: TypeAlias = Callable[[Operation], Awaitable[Reply]]


def naming_actual_collection(handler: _Handler) -> _Handler:
    """A handler for requests with `COLLECTION_UUID`, whose errors of this kind are complete."""

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
    """The fields of an error with the name of the collection; None if there is none, or it cannot be found out."""
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
