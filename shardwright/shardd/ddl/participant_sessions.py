"""A command of a coordinator is executed once, and not at all if it arrives late.

A coordinator raises the number of its session before each attempt (`shardd.ddl.coordinators.coordinator`), and its
participants execute commands as retryable writes, as in MongoDB. Mongod's own table of sessions, which is replicated,
remembers the last number that was executed. So an order that was on its way while its coordinator tried again, or came
to its end, finds that it is over, and does no harm to what was created since.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.write_concern import MAJORITY
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

_UUID_BYTES: Final = 16

EXECUTED: Final = "sharding_ddl_participants"
"""A collection of ``config`` with one document, whose update is the retryable write that counts as the execution."""


async def execute_once(
    context: ShardContext, request: Request, subject: str, work: Callable[[], Awaitable[None]]
) -> None:
    """Run ``work`` unless the request was executed already. Requests about one subject run one after the other.

    A request without a session is run in any case.

    Args:
        context: this shard daemon's context.
        request: what a coordinator has sent.
        subject: the collection or database it is about.
        work: what it asks for; if it fails, the request can come again.

    Raises:
        CommandError: TransactionTooOld, the coordinator has gone on; TypeMismatch or InvalidUUID, its session is none;
            or what ``work`` raises.
    """
    async with context.ddl_locks.hold(f"participant of {subject}"):
        if b"lsid" not in request.fields or b"txnNumber" not in request.fields:
            await work()
            return
        session, number = _session_of(request)
        if await _is_executed(context, session, number):
            await context.wait_majority()
            return
        await work()
        await _record(context, session, number)


def _session_of(request: Request) -> tuple[Binary, int]:
    session, number = request.get(b"lsid"), request.get(b"txnNumber")
    identity = session.get("id") if isinstance(session, Mapping) else None
    if not isinstance(identity, Binary) or not isinstance(number, int):
        raise CommandError(ErrorCode.TypeMismatch, "a session needs a UUID as lsid.id and a whole number as txnNumber")
    if identity.subtype != UUID_SUBTYPE or len(identity) != _UUID_BYTES:
        raise CommandError(ErrorCode.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
    return identity, number


async def _is_executed(context: ShardContext, session: Binary, number: int) -> bool:
    find = {"find": "transactions", "filter": {"_id.id": session}, "singleBatch": True}
    reply = await context.mongod.command("config", find)
    last = max((entry["txnNum"] for entry in reply["cursor"]["firstBatch"]), default=-1)
    if last > number:
        raise CommandError(
            ErrorCode.TransactionTooOld,
            f"Retryable write with txnNumber {number} is prohibited because a newer one with txnNumber {last} "
            "has already started on this session.",
        )
    return bool(last == number)


async def _record(context: ShardContext, session: Binary, number: int) -> None:
    update: dict[str, Any] = {"q": {"_id": "executed"}, "u": {"$inc": {"count": Int64(1)}}, "upsert": True}
    await context.mongod.write(
        "config",
        {
            "update": EXECUTED,
            "updates": [update],
            "lsid": {"id": session},
            "txnNumber": Int64(number),
            "writeConcern": MAJORITY,
        },
    )
