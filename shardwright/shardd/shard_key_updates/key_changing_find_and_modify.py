"""Executing a ``findAndModify`` that may change a shard key, under MongoDB's rules."""

from typing import Any, Final

from shardwright.shardd.shard_key_updates.key_changes import KeyChange
from shardwright.shardd.shard_key_updates.key_changing_request import KeyChangingRequest
from shardwright.shardd.shard_key_updates.previewed_updates import (
    NOT_A_DOCUMENT,
    Preview,
    find_and_modify_of_nothing,
    is_find_and_modify_overtaken,
    only_with_id,
    previewed_find_and_modify,
    raw_update,
)
from shardwright.shardd.shard_key_updates.update_preview import CAUSED_BY
from shardwright.shardd.shard_key_updates.update_transactions import (
    TransactionSteps,
    run_in_child_transaction,
    update_in_transaction,
)
from shardwright.sharding.owner_changes import MAY_CHANGE_OWNER, changed_owner
from shardwright.sharding.versions import VERSION_FIELDS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.message import op_msg, reply_document
from shardwright.wire.rawbson import (
    EMPTY_DOCUMENT,
    OBJECT,
    append,
    decode_document,
    decode_value,
    element,
    encode_elements,
    index,
    raw_document,
    without,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body

_REMOVED: Final = VERSION_FIELDS | {MAY_CHANGE_OWNER}
_OF_ONE: Final = frozenset({b"query", b"sort", b"upsert"})
_FINDING: Final = (b"sort", b"collation", b"hint", b"let")
_MODIFYING = (b"sort", b"upsert", b"collation", b"arrayFilters", b"hint", b"let", b"bypassDocumentValidation")


async def key_changing_find_and_modify(changing: KeyChangingRequest) -> bytes:
    """Execute a ``findAndModify`` as previewed; return the reply frame. CommandError if refused or failed."""
    try:
        return await _execute(changing)
    except CommandError as error:
        if error.code == ErrorCode.WouldChangeOwningShard:
            error.message = CAUSED_BY + error.message
        raise


async def _execute(changing: KeyChangingRequest) -> bytes:
    request = changing.request
    body, request_id = without(request.body, _REMOVED), request.message.request_id
    if changing.is_in_transaction:
        return await _in_transaction(changing, body, request_id)
    remembered = await _remembered(changing, body)
    if remembered is not None:
        return remembered
    query = request.raw_object(b"query") or EMPTY_DOCUMENT
    collated = changing.is_collated(request.body, request.fields)

    async def make(preview: Preview) -> bytes:
        made = previewed_find_and_modify(body, query, preview, is_collated=collated)
        is_too_long = len(made) > BSON_OBJECT_BYTES_MAX

        async def execute(child: KeyChangingRequest) -> dict[str, Any]:
            of_child = without(child.request.body, _REMOVED)
            if is_too_long:
                frame = await _in_transaction(child, of_child, request_id)
            else:
                of_child = previewed_find_and_modify(of_child, query, preview, is_collated=collated)
                frame = await child.exchange(of_child, request_id)
            return decode_document(response_body(frame))

        if is_too_long or changing.inserts_under_other_key(query, preview):
            statement_id = int(request.get(b"stmtId", 0))
            return reply_document(request_id, await run_in_child_transaction(changing, statement_id, execute))
        return await changing.exchange(made, request_id)

    def is_overtaken(preview: Preview, frame: bytes, *, is_last: bool) -> bool:
        return is_find_and_modify_overtaken(preview, response_body(frame), is_last=is_last)

    try:
        return await changing.execute_as_previewed(query, _modification(request, query), make, is_overtaken)
    except CommandError:
        # The preview may have waited for an earlier attempt of the same request, and have seen its result.
        remembered = await _remembered(changing, body)
        if remembered is None:
            raise
        return remembered


async def _remembered(changing: KeyChangingRequest, body: bytes) -> bytes | None:
    """Return mongod's reply frame to a request that it has executed already, or refuses to execute; otherwise None."""
    if not await changing.has_begun():
        return None
    frame = await changing.exchange(find_and_modify_of_nothing(body), changing.request.message.request_id)
    reply = response_body(frame)
    fields = index(reply)
    is_refused = b"code" in fields and decode_value(reply, fields[b"code"]) != NOT_A_DOCUMENT
    return frame if is_refused or b"retriedStmtId" in fields else None


async def _in_transaction(changing: KeyChangingRequest, body: bytes, request_id: int) -> bytes:
    """Execute the request in a client's transaction; return the reply frame. CommandError if refused or failed."""
    request, steps = changing.request, TransactionSteps(changing)
    query = request.raw_object(b"query") or EMPTY_DOCUMENT
    collated = changing.is_collated(request.body, request.fields)

    async def execute(before: bytes | None) -> bytes:
        made = body
        if before is not None:
            narrowed = element(b"query", OBJECT, only_with_id(query, before, is_collated=collated))
            made = append(without(body, _OF_ONE), narrowed)
        return response_body(await steps.run(made, request_id))

    change = KeyChange(changing.table, changing.shard, query, is_multi=False, is_retryable=changing.may_change_key)
    finding = {name.decode(): request.get(name) for name in _FINDING if name in request.fields}
    executed = await update_in_transaction(steps, change, finding, execute, may_leave=changing.may_change_owner)
    reply = executed.reply
    if executed.left is not None:
        reply = append(reply, encode_elements(changed_owner(executed.left)))
    return op_msg(reply, request_id=next_request_id(), response_to=request_id)


def _modification(request: Request, query: bytes) -> dict[str, Any]:
    """Return the arguments of the request that determine its effect."""
    modification = {"query": raw_document(query), "update": raw_update(request.body, request.fields[b"update"])}
    return modification | {name.decode(): request.get(name) for name in _MODIFYING if name in request.fields}
