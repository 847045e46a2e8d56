"""Reads of missing databases: MongoDB returns an empty result rather than an error."""

from collections.abc import Awaitable
from typing import Final

from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.stages import is_known
from shardwright.router.reads.explained import VERBOSITIES, wrapped
from shardwright.router.reads.pipeline import Pipeline
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import GENERIC_ARGUMENTS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, encode_elements, without
from shardwright.wire.read_preference import ReadPreference

_UNKNOWN_STAGE: Final = 40324
_ANY_MEMBER: Final = ReadPreference("primaryPreferred")


async def unless_missing(operation: Operation, reading: Awaitable[Reply], nothing: Reply) -> Reply:
    """The result of a read, or ``nothing`` if the database of its collection does not exist.

    Raises:
        CommandError: the read failed in another way; InvalidNamespace, which no shard had the chance to report.
    """
    try:
        return await reading
    except CommandError as error:
        check_is_missing(operation, error)
    return nothing


def check_is_missing(operation: Operation, error: CommandError) -> None:
    """Return if a read failed because the database of its collection does not exist.

    Raises:
        CommandError: as `unless_missing`; 40324, a pipeline has an unknown stage; NamespaceNotFound, it has ``$out``.
    """
    if error.code != ErrorCode.NamespaceNotFound or operation.request.db in operation.context.routing.databases:
        raise error
    Namespace(operation.request.db, operation.request.collection).check_readable()
    if operation.request.name == "aggregate":
        _check_stages(Pipeline.parse(operation.request), error)


def _check_stages(pipeline: Pipeline, error: CommandError) -> None:
    """Refuse what a mongos refuses before it looks for the database, when it has read only the names of the stages.

    Raises:
        CommandError: 40324, one is unknown; the given error, since ``$out`` needs the database.
    """
    for name in pipeline.names:
        if not is_known(name):
            raise CommandError(_UNKNOWN_STAGE, f"Unrecognized pipeline stage name: '{name}'")
    if "$out" in pipeline.names:
        raise error


async def check_query(operation: Operation) -> None:
    """Refuse a ``find`` that is wrong; a mongos parses it before it looks for the database.

    A mongod is asked to explain it, which is how it parses a command without executing it.

    Raises:
        CommandError: what is wrong with it; no mongod could be asked.
    """
    shards = await operation.context.shards.all_ids()
    if not shards:
        return
    request = operation.request
    generic = {name for name in request.fields if name in GENERIC_ARGUMENTS or name.startswith(b"$")}
    explain = wrapped(without(request.body, generic), VERBOSITIES[0], raw_elements(request, (b"$db",)))
    explain = append(explain, encode_elements({"$readPreference": {"mode": _ANY_MEMBER.mode}}))
    frame = op_msg(explain, request_id=next_request_id())
    reply = await operation.context.sender.send(shards[0], frame, preference=_ANY_MEMBER, may_repeat=True)
    reply.raise_for_error()
