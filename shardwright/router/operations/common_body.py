"""What is settled about an aggregation before it is sent to several shards, so that all run the same."""

import re
from collections.abc import Mapping
from typing import Any, Final

from shardwright.router.operations.operation import Operation
from shardwright.router.pipelines.commands import API_PARAMETERS
from shardwright.wire.rawbson import append, decode_document, encode_elements, without

_VARYING: Final = re.compile(rb"\$(?:rand|function)\0")
"""What gives an expression of constants another value each time."""

_CHECKED: Final = frozenset(
    {"aggregate", "pipeline", "cursor", "collation", "hint", "let", "allowDiskUse", "bypassDocumentValidation"}
)


async def common_body(operation: Operation, shard: str) -> bytes:
    """The client's command for several shards.

    Args:
        operation: the aggregation.
        shard: one of the shards.

    Raises:
        CommandError: APIStrictError; a variable of ``let`` cannot be evaluated; or the shard cannot be reached.
    """
    request = operation.request
    if request.get(b"apiStrict"):
        await _check_strictly(operation, shard)
    if b"let" not in request.fields:
        return request.body
    _, _, start, end = request.fields[b"let"]
    if _VARYING.search(request.body, start, end) is None:
        return request.body
    variables = await _evaluated(operation, shard)
    return append(without(request.body, (b"let",)), encode_elements({"let": variables}))


async def _check_strictly(operation: Operation, shard: str) -> None:
    """Have a mongod check the command against the Stable API.

    The commands for the shards have fields that belong to no version of it, so they cannot be sent with the client's
    parameters.

    Raises:
        CommandError: APIStrictError, or whatever is wrong with the command.
    """
    given = decode_document(operation.request.body)
    command = {name: value for name, value in given.items() if name in _CHECKED}
    parameters = {name: value for name, value in given.items() if name.encode() in API_PARAMETERS}
    explaining = {"explain": command, "verbosity": "queryPlanner", **parameters}
    await operation.context.sender.command(shard, operation.request.db, explaining, may_repeat=True)


async def _evaluated(operation: Operation, shard: str) -> Mapping[str, Any]:
    """The variables of ``let`` as constants, evaluated once by a mongod."""
    given = operation.request.get(b"let")
    named = {name: f"$${name}" for name in given}
    command = {"aggregate": 1, "pipeline": [{"$documents": [named]}], "cursor": {}, "let": given}
    reply = await operation.context.sender.command(shard, operation.request.db, command, may_repeat=True)
    [values] = reply["cursor"]["firstBatch"]
    return {name: {"$literal": values[name]} if name in values else "$$REMOVE" for name in given}
