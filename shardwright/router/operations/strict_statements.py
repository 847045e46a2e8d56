"""``apiStrict`` for the arguments of a transaction's statements.

Shards execute statements of transactions without the parameters of the Stable API (`shardd.transactions`). So a mongod
is asked before to explain the statement with them, which is how it parses one without executing it.
"""

from typing import Final

from shardwright.router.cursors.get_more import API_PARAMETERS
from shardwright.router.operations.operation import Operation
from shardwright.router.reads.explained import VERBOSITIES, wrapped
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.wire.arguments import GENERIC_ARGUMENTS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import encode_elements, without
from shardwright.wire.read_preference import ReadPreference
from shardwright.wire.request import Request

_READS: Final = frozenset({"aggregate", "find"})
_WRITES: Final = frozenset({"delete", "insert", "update"})
_COLLECTION_UUID: Final = b"collectionUUID"
"""The only argument of writes that is not in the version."""

_ANY_MEMBER: Final = ReadPreference("primaryPreferred")


def check_write_strictly(request: Request) -> None:
    """Refuse a write with ``apiStrict`` that has an argument which is not in the version.

    Raises:
        CommandError: APIStrictError.
    """
    if request.name in _WRITES and _COLLECTION_UUID in request.fields:
        raise CommandError(
            ErrorCode.APIStrictError, f"BSON field '{request.name}.collectionUUID' is not allowed with apiStrict:true."
        )


async def check_read_strictly(operation: Operation) -> None:
    """Refuse a read with ``apiStrict`` that has an argument which is not in the version.

    Whatever else is wrong with the read is left to the shard that executes it.

    Raises:
        CommandError: APIStrictError; no shard could be asked.
    """
    request, context = operation.request, operation.context
    if request.name not in _READS:
        return
    shards = await context.shards.all_ids()
    if not shards:
        return
    generic = {name for name in request.fields if name in GENERIC_ARGUMENTS or name.startswith(b"$")}
    others = encode_elements({"$db": request.db, "$readPreference": {"mode": _ANY_MEMBER.mode}})
    read = without(request.body, generic)
    explain = wrapped(read, VERBOSITIES[0], raw_elements(request, API_PARAMETERS) + others)
    frame = op_msg(explain, request_id=next_request_id())
    reply = await context.sender.send(shards[0], frame, preference=_ANY_MEMBER, may_repeat=True)
    error = reply.error
    if error is not None and error.code == ErrorCode.APIStrictError:
        raise error
