"""Checks by a mongod before the router or a shard runs something: all errors are mongod's, in mongod's order.

A mongod is asked to explain a pipeline, which is how it parses one without executing it. The command names a
collection that does not exist, so that nothing is planned. Shards execute statements of transactions without the
parameters of the Stable API (`shardd.transactions`), so a strict statement is explained with them first.
"""

import re
from typing import Final

from shardwright.router.cursors.cursor import API_PARAMETERS
from shardwright.router.operations.operation import Operation
from shardwright.router.reads.explain import VERBOSITIES, wrapped
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.arguments import GENERIC_ARGUMENTS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, not_allowed_strictly
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import STRING, element, encode_elements, from_elements, string_value, without
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.request import Request

EXECUTING: Final = "PlanExecutor error during aggregation :: caused by :: "
"""What mongod puts before errors of a pipeline that it has found to be right."""

_NO_UNIQUE_INDEX: Final = 51190
_NO_UNIQUE_INDEX_HERE: Final = 51183
"""MongoDB's numbers for ``on`` without a unique index: a mongos's, and a mongod's."""

_ANY_MEMBER: Final = ReadPreference("primaryPreferred")
_MISSING: Final = element(b"aggregate", STRING, string_value("tmp.explained"))
_CHECKED: Final = (b"pipeline", b"collation", b"let", b"allowDiskUse", b"bypassDocumentValidation")
_NEEDS_INDEX: Final = re.compile(rb"\$(?:geoNear|text)\0")
"""What mongod refuses on a collection without the index, so also on one that does not exist."""


async def check_pipeline(operation: Operation, target: str | None = None) -> None:
    """Refuse a pipeline that is wrong.

    Args:
        operation: the aggregation.
        target: a shard that has the collection that the last stage writes, None if there is none.

    Raises:
        CommandError: what mongod finds, also with regard to the Stable API; 51190, there is no unique index on the
            fields of a ``$merge``; no mongod could be asked.
    """
    shard, source = await _where(operation, target)
    request = operation.request
    body, fields = request.body, request.fields
    given = [body[fields[name][1] : fields[name][3]] for name in _CHECKED if name in fields]
    inner = from_elements(b"".join((source, *given, encode_elements({"cursor": {}}))))
    reply = await parsed_by(operation, shard, inner)
    try:
        reply.raise_for_error()
    except CommandError as error:
        if error.code != _NO_UNIQUE_INDEX_HERE:
            raise
        raise CommandError(_NO_UNIQUE_INDEX, error.message) from error


async def parsed_by(operation: Operation, shard: str, inner: bytes) -> ShardReply:
    """Have a mongod parse a command with the operation's parameters of the Stable API; the reply, perhaps an error.

    Args:
        operation: the operation.
        shard: the shard that is asked.
        inner: the raw command, without arguments that all commands have.

    Raises:
        CommandError: the shard cannot be reached.
    """
    request = operation.request
    others = encode_elements({"$db": request.db, "$readPreference": {"mode": _ANY_MEMBER.mode}})
    explain = wrapped(inner, VERBOSITIES[0], raw_elements(request, API_PARAMETERS) + others)
    frame = op_msg(explain, request_id=next_request_id())
    return await operation.context.sender.send(shard, frame, preference=_ANY_MEMBER, may_repeat=True)


async def _where(operation: Operation, target: str | None) -> tuple[str, bytes]:
    """The shard that is asked, and the raw element that names the collection.

    Raises:
        CommandError: ShardNotFound, there is no shard; the config servers did not answer.
    """
    request = operation.request
    kind, start, _, end = next(iter(request.fields.values()))
    named = request.body[start:end]
    if kind != STRING:
        return target or await operation.context.shards.any_id(), named
    _, _, at, until = request.fields[b"pipeline"]
    routing = await operation.context.routing.find(operation.namespace)
    if routing is None:
        return target or await operation.context.shards.any_id(), _MISSING
    if _NEEDS_INDEX.search(request.body, at, until) is not None:
        return min(routing.shards), named
    return target or routing.primary, _MISSING


_READS: Final = frozenset({"aggregate", "find"})
_WRITES: Final = frozenset({"delete", "insert", "update"})
_COLLECTION_UUID: Final = b"collectionUUID"
"""The only argument of writes that is not in the version."""


def check_write_strictly(request: Request) -> None:
    """Refuse a write with ``apiStrict`` that has an argument which is not in the version.

    Raises:
        CommandError: APIStrictError.
    """
    if request.name in _WRITES and _COLLECTION_UUID in request.fields:
        raise not_allowed_strictly(f"{request.name}.collectionUUID")


async def check_read_strictly(operation: Operation) -> None:
    """Refuse a read with ``apiStrict`` that has an argument which is not in the version.

    Whatever else is wrong with the read is left to the shard that executes it.

    Raises:
        CommandError: APIStrictError; no shard could be asked.
    """
    request = operation.request
    if request.name not in _READS:
        return
    shards = await operation.context.shards.all_ids()
    if not shards:
        return
    generic = {name for name in request.fields if name in GENERIC_ARGUMENTS or name.startswith(b"$")}
    reply = await parsed_by(operation, operation.context.shards.reachable_of(shards), without(request.body, generic))
    error = reply.error
    if error is not None and error.code == ErrorCode.APIStrictError:
        raise error
