"""``apiStrict`` for the arguments of a transaction's statements.

Shards execute statements of transactions without the parameters of the Stable API (`shardd.transactions`). So a mongod
is asked before to explain the statement with them, which is how it parses one without executing it.
"""

from typing import Final

from shardwright.router.operations.checked_pipeline import parsed_by
from shardwright.router.operations.operation import Operation
from shardwright.wire.arguments import GENERIC_ARGUMENTS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.field_errors import not_allowed_strictly
from shardwright.wire.rawbson import without
from shardwright.wire.request import Request

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
    reply = await parsed_by(operation, shards[0], without(request.body, generic))
    error = reply.error
    if error is not None and error.code == ErrorCode.APIStrictError:
        raise error
