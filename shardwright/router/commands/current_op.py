"""``currentOp`` and ``killOp``: operations in progress on the shards, and of all processes of this router."""

from collections.abc import Callable
from typing import Any, Final

import bson
import trio
from bson.binary import UUID_SUBTYPE, Binary

from shardwright.daemon.current_op import find_operations, found_operations
from shardwright.daemon.users import UserName
from shardwright.router.access.access_control import not_authorized
from shardwright.router.access.needs import TO_END_OTHERS, of_user
from shardwright.router.cursors.open_cursor import NO_USER
from shardwright.router.operations.local_operations import (
    CURRENT_OP,
    CurrentOpArguments,
    fitting,
    interrupt_operations,
    local_operations,
    user_of,
)
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.router_documents import answer_with_own_documents
from shardwright.router.operations.scatter import scatter
from shardwright.router.pipelines.split import shard_name_stage
from shardwright.router.pipelines.stages import check_stages
from shardwright.router.processes.siblings import (
    is_from_sibling,
    send_to_siblings,
    tell_siblings,
    user_of_sibling,
)
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import raise_worst
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import ARRAY, STRING, decode_document, is_string, spans, type_name_of

logger = get_logger("router.operations")

_KILL_SECONDS_MAX = 10.0
"""Longest search on a shard for the remains of a killed operation."""

HAS_INTERRUPTED: Final = "hasInterrupted"
"""The field that reports to another process of the router whether the operation to kill was here."""


def is_about_local_operations(operation: Operation, pipeline: Pipeline) -> bool:
    """Whether a pipeline reads the router's operations rather than the shards'."""
    names_collection = next(iter(operation.request.fields.values()))[0] == STRING
    if pipeline.first != CURRENT_OP or operation.request.db != "admin" or names_collection:
        return False
    specification = pipeline.stages[0].specification
    return isinstance(specification, dict) and specification.get("localOps") is True


async def aggregate_local_operations(operation: Operation, pipeline: Pipeline) -> Reply:
    """Run a pipeline for which `is_about_local_operations` holds.

    Raises:
        CommandError: TypeMismatch, FailedToParse; or the shard that evaluates further stages failed.
    """
    check_stages(pipeline)
    wanted = CurrentOpArguments.parse(pipeline.stages[0].specification)
    documents = fitting(await _of_all_processes(operation, wanted))
    return await answer_with_own_documents(operation, documents, pipeline)


def answer_sibling(operation: Operation) -> Reply:
    """Return the operations of this process to another process of this router."""
    wanted = CurrentOpArguments.parse(operation.argument(b"wanted"))
    return {"inprog": local_operations(operation.context, wanted, user_of_sibling(operation.request))}


async def kill_local_operation(operation: Operation, opid: int) -> bool:
    """Interrupt an operation of any process of this router; return whether it was found.

    Raises:
        CommandError: Unauthorized, the user may kill only its own operations and the opid is not one of them.
    """
    context, request = operation.context, operation.request
    owner = user_of_sibling(request)
    if not is_from_sibling(request) and context.access is not None:
        owner = None if context.access.allows(operation.client, TO_END_OTHERS) else _asking_user(operation)
    if _interrupt(operation, lambda each: each.opid == opid and owner in (None, user_of(each.client))):
        return True
    replies = await tell_siblings(context, request, {"killOp": 1, "op": opid}, owner) or ()
    is_found = any(reply[HAS_INTERRUPTED] for reply in replies)
    if not (is_found or owner is None or is_from_sibling(request)):
        raise not_authorized(request)
    return is_found


async def kill_operations(operation: Operation) -> Reply:
    """Kills the operations that have one of the given client operation keys."""
    arguments = Arguments.of(operation.request, "_killOperations")
    array = arguments.span(b"operationKeys", ARRAY)
    keys = {
        Arguments(operation.request.body, "_killOperations.operationKeys", {name: span}).uuid(name).bytes
        for name, span in spans(operation.request.body, array[2])
    }
    _interrupt(operation, lambda each: _key(each) in keys)
    killing = {"_killOperations": 1, "operationKeys": [Binary(key, UUID_SUBTYPE) for key in keys]}
    await tell_siblings(operation.context, operation.request, killing)
    return {}


def _key(operation: Operation) -> bytes | None:
    """Return the ``clientOperationKey`` of an operation."""
    key = operation.argument(b"clientOperationKey")
    return bytes(key) if isinstance(key, bytes) else None


def _interrupt(operation: Operation, is_meant: Callable[[Operation], bool]) -> bool:
    """Interrupt operations of this process, here and on shards; return whether there were any."""
    interrupted = interrupt_operations(operation.context, is_meant)
    for each in interrupted:
        operation.context.background.start_soon(_kill_on_shards, each)
    return bool(interrupted)


async def _of_all_processes(operation: Operation, wanted: CurrentOpArguments) -> list[dict[str, Any]]:
    context = operation.context
    owner = None if context.access is None or wanted.all_users else _asking_user(operation)
    replies = await send_to_siblings(context, "admin", {"currentOp": 1, "wanted": wanted.document()}, owner)
    return local_operations(context, wanted, owner) + [each for reply in replies for each in reply["inprog"]]


def _asking_user(operation: Operation) -> UserName:
    """Return the user of a request under access control."""
    user = user_of(operation.client)
    if user is None:
        raise not_authorized(operation.request)
    return user


async def _kill_on_shards(interrupted: Operation) -> None:
    """Kill the remains of an interrupted operation on shards, in the background, because a shard may not answer.

    Reads end because the router has closed the connection. A write does not. It is found by its session, in which
    nothing else can be running. A write of a client without sessions runs to its end. The search includes the user,
    because sessions of several users may have the same UUID.
    """
    lsid = interrupted.request.raw_object(b"lsid")
    if lsid is None:
        return
    session = decode_document(lsid)
    mine = {"type": "op", "lsid.id": session.get("id"), "lsid.uid": session.get("uid", interrupted.user or NO_USER)}
    search = {"aggregate": 1, "pipeline": [{CURRENT_OP: {"allUsers": True}}, {"$match": mine}], "cursor": {}}
    sender = interrupted.context.sender
    for shard in interrupted.targeted:
        try:
            with trio.fail_after(_KILL_SECONDS_MAX):
                found = await sender.command(shard, "admin", search, may_repeat=True)
                for running in found["cursor"]["firstBatch"]:
                    await sender.command(shard, "admin", {"killOp": 1, "op": running["opid"]}, may_repeat=True)
        except (CommandError, trio.TooSlowError) as error:
            logger.warning("Could not kill an operation on a shard", shard=shard, error=str(error) or "timeout")
        except Exception:  # in the background, an internal error must not end the router
            logger.exception("Internal error while killing an operation on a shard", shard=shard)


_LARGE_OPID: Final = 26823
_MALFORMED_OPID: Final = 28625
"""MongoDB's error code for an opid that is neither a number nor ``shard:number``."""


async def current_op(operation: Operation) -> Reply:
    """The operations running on the shards; their opids include the shard."""
    if is_from_sibling(operation.request):
        return answer_sibling(operation)
    shards = await operation.context.shards.all_ids()
    replies = await scatter(operation, {shard: _question(operation, shard) for shard in shards}, may_repeat=True)
    raise_worst(replies)
    return {"inprog": [running for reply in replies for running in found_operations(reply.document)]}


async def kill_op(operation: Operation) -> Reply:
    """Kills an operation on a shard, or of this router, given its opid from ``currentOp``."""
    if b"op" not in operation.request.fields:
        raise CommandError(ErrorCode.NoSuchKey, 'Did not provide "op" field')
    opid = operation.argument(b"op")
    if not is_string(opid):
        has_interrupted = await kill_local_operation(operation, _local_opid(opid))
        told = {HAS_INTERRUPTED: has_interrupted} if is_from_sibling(operation.request) else {}
        return {"info": "attempting to kill op", **told}
    shard_id, colon, number = opid.rpartition(":")
    if not colon or not number.lstrip("-").isdigit():
        raise CommandError(
            _MALFORMED_OPID, f'The op argument to killOp must be of the format shardid:opid but found "{opid}"'
        )
    await operation.context.sender.command(shard_id, "admin", {"killOp": 1, "op": int(number)}, may_repeat=True)
    return {"shard": shard_id, "shardid": int(number)}


def _local_opid(opid: object) -> int:
    """Return the opid of an operation of this router."""
    if isinstance(opid, bool) or not isinstance(opid, int | float):
        raise CommandError(
            ErrorCode.TypeMismatch, f'Expected field "op" to have numeric type, but found {type_name_of(opid)}'
        )
    if opid % 1:
        raise CommandError(
            ErrorCode.BadValue,
            f'Expected field "op" to have a value exactly representable as a 64-bit integer, but found op: {opid}',
        )
    if not -(1 << 31) <= opid < 1 << 32:
        raise CommandError(_LARGE_OPID, f"invalid op : {int(opid)}. Op ID cannot be represented with 32 bits")
    return int(opid)


def _question(operation: Operation, shard: str) -> bytes:
    """Encode the ``$currentOp`` for a shard. The shard's name is added first, so that conditions may refer to it."""
    wants_own = operation.context.access is not None and operation.argument(b"$ownOps")
    user = user_of(operation.client) if wants_own else None
    own = [] if user is None else [of_user(user)]
    question = find_operations(operation.request.document, [*own, shard_name_stage(CURRENT_OP, shard)])
    return op_msg(bson.encode({**question, "$db": "admin"}), request_id=next_request_id())
