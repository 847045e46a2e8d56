"""The operations of all processes of this router: ``$currentOp`` with ``localOps``, and ``killOp`` of their numbers."""

from collections.abc import Callable
from typing import Any, Final

import trio
from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

from shardwright.daemon.user_names import UserName
from shardwright.router.access.access_control import not_authorized
from shardwright.router.access.own_operations import TO_END_OTHERS
from shardwright.router.commands.command_registry import command
from shardwright.router.cursors.session import NO_USER
from shardwright.router.operations.current_op_arguments import CURRENT_OP, CurrentOpArguments
from shardwright.router.operations.fitting_operations import fitting
from shardwright.router.operations.local_operations import interrupt_operations, local_operations, user_of
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.own_documents import aggregate_own_documents
from shardwright.router.pipelines.internal_stages import check_stages
from shardwright.router.processes.siblings import (
    is_from_sibling,
    send_to_siblings,
    tell_siblings,
    user_of_sibling,
)
from shardwright.router.reads.aggregate import batch_size
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import ARRAY, STRING, decode_document, spans

logger = get_logger("router.operations")

_KILL_SECONDS_MAX = 10.0
"""How long shards may take to look for what a killed operation left running on them."""

_FIRST_BATCH = 101

HAS_INTERRUPTED: Final = "hasInterrupted"
"""The field with which a process tells another one whether it had the operation to be killed."""


def is_about_local_operations(operation: Operation, pipeline: Pipeline) -> bool:
    """Whether a pipeline asks for the operations of the router rather than those of the shards."""
    names_collection = next(iter(operation.request.fields.values()))[0] == STRING
    if pipeline.first != CURRENT_OP or operation.request.db != "admin" or names_collection:
        return False
    specification = pipeline.stages[0].specification
    return isinstance(specification, dict) and specification.get("localOps") is True


async def aggregate_local_operations(operation: Operation, pipeline: Pipeline) -> Reply:
    """Answer a pipeline for which `is_about_local_operations` holds.

    Without further stages no shard is needed, so that a router shows its operations while no shard answers.

    Raises:
        CommandError: TypeMismatch, FailedToParse; a shard that has to run further stages failed.
    """
    check_stages(pipeline)
    wanted = CurrentOpArguments.parse(pipeline.stages[0].specification)
    documents = fitting(await _of_all_processes(operation, wanted))
    size = batch_size(operation.request)
    if len(pipeline.stages) == 1 and len(documents) <= (_FIRST_BATCH if size is None else size):
        namespace = str(Namespace.collectionless_aggregate("admin"))
        return {"cursor": {"firstBatch": documents, "id": Int64(0), "ns": namespace}}
    shards = await operation.context.shards.all_ids()
    return await aggregate_own_documents(operation, documents, pipeline, shards[0])


def answer_sibling(operation: Operation) -> Reply:
    """The operations of this process, for another process of this router."""
    wanted = CurrentOpArguments.parse(operation.argument(b"wanted"))
    return {"inprog": local_operations(operation.context, wanted, user_of_sibling(operation.request))}


async def kill_local_operation(operation: Operation, opid: int) -> bool:
    """Interrupt an operation of any process of this router; returns whether there is one of that number.

    Raises:
        CommandError: Unauthorized, there is none of the user, who may not end those of others.
    """
    context, request = operation.context, operation.request
    owner = user_of_sibling(request)
    if not is_from_sibling(request) and context.access is not None:
        owner = None if context.access.allows(operation.client, TO_END_OTHERS) else _asking_user(operation)
    if await _interrupt(operation, lambda each: each.opid == opid and owner in (None, user_of(each.client))):
        return True
    replies = await tell_siblings(context, request, {"killOp": 1, "op": opid}, owner) or ()
    is_found = any(reply[HAS_INTERRUPTED] for reply in replies)
    if not (is_found or owner is None or is_from_sibling(request)):
        raise not_authorized(request)
    return is_found


@command("_killOperations", admin_only=True)
async def kill_operations(operation: Operation) -> Reply:
    """Kills the operations whose clients have given them one of the keys."""
    arguments = Arguments.of(operation.request, "_killOperations")
    arguments.refuse_unknown((b"_killOperations", b"operationKeys", b"$fromSibling"))
    array = arguments.span(b"operationKeys", ARRAY)
    keys = {
        Arguments(operation.request.body, "_killOperations.operationKeys", {name: span}).uuid(name).bytes
        for name, span in spans(operation.request.body, array[2])
    }
    await _interrupt(operation, lambda each: _key(each) in keys)
    killing = {"_killOperations": 1, "operationKeys": [Binary(key, UUID_SUBTYPE) for key in keys]}
    await tell_siblings(operation.context, operation.request, killing)
    return {}


def _key(operation: Operation) -> bytes | None:
    """The ``clientOperationKey`` of an operation."""
    key = operation.argument(b"clientOperationKey")
    return bytes(key) if isinstance(key, bytes) else None


async def _interrupt(operation: Operation, is_meant: Callable[[Operation], bool]) -> bool:
    """Interrupt operations of this process, here and on shards; returns whether there were any."""
    interrupted = interrupt_operations(operation.context, is_meant)
    with trio.move_on_after(_KILL_SECONDS_MAX):
        for each in interrupted:
            await _kill_on_shards(each)
    return bool(interrupted)


async def _of_all_processes(operation: Operation, wanted: CurrentOpArguments) -> list[dict[str, Any]]:
    context = operation.context
    owner = None if context.access is None or wanted.all_users else _asking_user(operation)
    replies = await send_to_siblings(context, "admin", {"currentOp": 1, "wanted": wanted.document()}, owner)
    return local_operations(context, wanted, owner) + [each for reply in replies for each in reply["inprog"]]


def _asking_user(operation: Operation) -> UserName:
    """Who has sent a request under access control.

    Raises:
        CommandError: Unauthorized, nobody has logged in.
    """
    user = user_of(operation.client)
    if user is None:
        raise not_authorized(operation.request)
    return user


async def _kill_on_shards(interrupted: Operation) -> None:
    """Kill what an interrupted operation left running on shards.

    Reads end there because the router has closed the connection. A write does not; it is recognised by its session, in
    which nothing else can be running. A write of a client that uses no sessions runs to its end. Sessions of several
    users may have the same UUID.
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
            found = await sender.command(shard, "admin", search, may_repeat=True)
            for running in found["cursor"]["firstBatch"]:
                await sender.command(shard, "admin", {"killOp": 1, "op": running["opid"]}, may_repeat=True)
        except CommandError as error:
            logger.warning("Could not kill an operation on a shard", shard=shard, error=error.message)
