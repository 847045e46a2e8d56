"""Executing a coordinator's commands only once, and not at all if they arrive late.

A coordinator raises its session's transaction number before each attempt (`shardd.ddl.coordinators.coordinator`), and
its participants execute commands as retryable writes, as in MongoDB. mongod's own session table, which is replicated,
records the last number that was executed. So a command that was delayed while its coordinator tried again or finished
is refused, and cannot harm what was created since.
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
"""A collection of ``config`` with one document. Updating it is the retryable write that records an execution."""


async def execute_once(
    context: ShardContext, request: Request, subject: str, work: Callable[[], Awaitable[None]]
) -> None:
    """Run ``work`` unless the request has been executed already. Requests about one subject run one after the other.

    A request without a session is always executed.

    Args:
        context: this shard daemon's context.
        request: the coordinator's command.
        subject: the collection or database it is about.
        work: executes it; if that fails, the request may be repeated.

    Raises:
        CommandError: TransactionTooOld, the coordinator has sent a newer command; TypeMismatch or InvalidUUID, the
            session is malformed; or raised by ``work``.
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
