"""``currentOp``, of operations in progress on the shards, and ``killOp``, of those and of the router's own."""

from typing import Final

import bson

from shardwright.daemon.current_op import find_operations, found_operations
from shardwright.router.access.own_operations import of_user
from shardwright.router.commands.command_registry import command
from shardwright.router.commands.local_operations import HAS_INTERRUPTED, answer_sibling, kill_local_operation
from shardwright.router.operations.current_op_arguments import CURRENT_OP
from shardwright.router.operations.local_operations import user_of
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import scatter
from shardwright.router.pipelines.shard_names import shard_name_stage
from shardwright.router.processes.siblings import is_from_sibling
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.worst_error import raise_worst
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import is_string
from shardwright.wire.type_names import type_name_of

_LARGE_OPID: Final = 26823
_MALFORMED_OPID: Final = 28625
"""MongoDB's number for an opid that is neither a number nor ``shard:number``."""


@command("currentOp", admin_only=True, reads=True)
async def current_op(operation: Operation) -> Reply:
    """The operations running on the shards; their opids include the shard."""
    if is_from_sibling(operation.request):
        return answer_sibling(operation)
    shards = await operation.context.shards.all_ids()
    replies = await scatter(operation, {shard: _question(operation, shard) for shard in shards}, may_repeat=True)
    raise_worst(replies)
    return {"inprog": [running for reply in replies for running in found_operations(reply.document)]}


@command("killOp", admin_only=True)
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
    """The number of an operation of this router.

    Raises:
        CommandError: TypeMismatch, BadValue, 26823.
    """
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
    """The frame that asks a shard for its operations, with its name; the command's conditions apply to that too."""
    wants_own = operation.context.access is not None and operation.argument(b"$ownOps")
    user = user_of(operation.client) if wants_own else None
    own = [] if user is None else [of_user(user)]
    question = find_operations(operation.request.document, [*own, shard_name_stage(CURRENT_OP, shard)])
    return op_msg(bson.encode({**question, "$db": "admin"}), request_id=next_request_id())
