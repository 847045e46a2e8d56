"""Validation by a mongod before the router or a shard runs something, so that all errors are mongod's, in its order.

A mongod explains the pipeline, which parses it without executing it. The command names a collection that does not
exist, so that nothing is planned. Shards execute statements of transactions without API parameters
(`shardd.transactions`), so a strict statement is first explained with them.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from shardwright.router.operations.operation import Operation
from shardwright.router.reads.explain import VERBOSITIES, wrapped
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.arguments import GENERIC_ARGUMENTS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, not_allowed_strictly
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import STRING, element, encode_elements, from_elements, string_value, without
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.request import Request, raw_elements
from shardwright.wire.request_validation import API_PARAMETERS

EXECUTING: Final = "PlanExecutor error during aggregation :: caused by :: "
"""Mongod's prefix to errors of a pipeline that it has parsed successfully."""

_NO_UNIQUE_INDEX: Final = 51190
_NO_UNIQUE_INDEX_HERE: Final = 51183
"""MongoDB's error codes for ``on`` without a unique index: mongos's and mongod's."""

_ANY_MEMBER: Final = ReadPreference("primaryPreferred")
_MISSING: Final = element(b"aggregate", STRING, string_value("tmp.explained"))
_CHECKED: Final = frozenset({b"pipeline", b"collation", b"let", b"allowDiskUse", b"bypassDocumentValidation"})
_ELSEWHERE: Final = frozenset({b"aggregate", b"cursor", b"explain", b"collectionUUID"})
"""Arguments of aggregations that the router itself checks, or gives in another form."""

_NEEDS_INDEX: Final = re.compile(rb"\$(?:geoNear|text)\0")
"""Operators that mongod refuses on a collection without the index, and so on one that does not exist."""


async def check_pipeline(
    operation: Operation,
    target: str | None = None,
    *,
    collation: Mapping[str, Any] | None = None,
    all_arguments: bool = False,
) -> str:
    """Refuse an invalid pipeline; return the shard that has parsed a valid one.

    Args:
        target: a shard with the collection that the last stage writes, None if there is none.
        collation: the collation to use unless the aggregation has one. The checked collection does not exist there, so
            it has no default.
        all_arguments: whether to check all arguments of the aggregation instead of those that concern the pipeline.

    Raises:
        CommandError: mongod's error, also about the Stable API; 51190, there is no unique index on the fields of a
            ``$merge``.
    """
    shard, source = await _where(operation, target)
    request = operation.request
    body, fields = request.body, request.fields
    checked = fields.keys() - _ELSEWHERE if all_arguments else _CHECKED
    given = [
        body[fields[name][1] : fields[name][3]]
        for name in fields
        if name in checked and not (name in GENERIC_ARGUMENTS or name.startswith(b"$"))
    ]
    added = {"cursor": {}} if collation is None or b"collation" in fields else {"cursor": {}, "collation": collation}
    inner = from_elements(b"".join((source, *given, encode_elements(added))))
    reply = await parsed_by(operation, shard, inner)
    try:
        reply.raise_for_error()
    except CommandError as error:
        if error.code != _NO_UNIQUE_INDEX_HERE:
            raise
        raise CommandError(_NO_UNIQUE_INDEX, error.message) from error
    return shard


async def parsed_by(operation: Operation, shard: str, inner: bytes) -> ShardReply:
    """Make a mongod parse a command with the operation's API parameters; return its reply, possibly an error."""
    request = operation.request
    others = encode_elements({"$db": request.db, "$readPreference": {"mode": _ANY_MEMBER.mode}})
    explain = wrapped(inner, VERBOSITIES[0], raw_elements(request, API_PARAMETERS) + others)
    frame = op_msg(explain, request_id=next_request_id())
    return await operation.context.sender.send(shard, frame, preference=_ANY_MEMBER, may_repeat=True)


async def _where(operation: Operation, target: str | None) -> tuple[str, bytes]:
    """Return the shard that parses the pipeline, and the raw element that names the collection there."""
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
"""The only argument of writes that is not in the Stable API."""


def check_write_strictly(request: Request) -> None:
    """Refuse a write with ``apiStrict`` that has an argument outside of the Stable API."""
    if request.name in _WRITES and _COLLECTION_UUID in request.fields:
        raise not_allowed_strictly(f"{request.name}.collectionUUID")


async def check_read_strictly(operation: Operation) -> None:
    """Refuse a read with ``apiStrict`` that has an argument outside of the Stable API.

    Other errors in the read are left to the shard that executes it.
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
