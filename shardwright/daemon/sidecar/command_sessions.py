"""Executing commands of another daemon only once, and not at all if they are delayed.

The sender names a session and raises its transaction number before each attempt. The receiver records executions as
retryable writes, as MongoDB does. mongod's own session table, which is replicated, keeps the last executed number. So a
command that was delayed while its sender retried or finished is refused, and cannot damage newer objects.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self

from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

from shardwright.daemon.sidecar.noop_writer import wait_for_majority
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, check_writes
from shardwright.wire.request import Request

_UUID_BYTES: Final = 16

_CONFIG: Final = "config"

EXECUTED: Final = "sharding_ddl_participants"
"""A collection of ``config`` with one document. Updating it is the retryable write that records an execution."""


class Commands(Protocol):
    """A runner of commands on the primary mongod."""

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command and return its decoded reply."""


@dataclass(frozen=True, slots=True)
class CommandSession:
    """The session and transaction number of one command.

    Methods that access mongod raise CommandError if it refuses, and BackendError if it does not answer.

    Attributes:
        id: ``lsid.id``.
        number: ``txnNumber``.
    """

    id: Binary
    number: int

    @classmethod
    def of(cls, request: Request) -> Self | None:
        """Return a request's session; None without one, and then it always executes.

        TypeMismatch or InvalidUUID if malformed.
        """
        if b"lsid" not in request.fields or b"txnNumber" not in request.fields:
            return None
        session, number = request.get(b"lsid"), request.get(b"txnNumber")
        identity = session.get("id") if isinstance(session, Mapping) else None
        if not isinstance(identity, Binary) or not isinstance(number, int):
            raise CommandError(
                ErrorCode.TypeMismatch, "a session needs a UUID as lsid.id and a whole number as txnNumber"
            )
        if identity.subtype != UUID_SUBTYPE or len(identity) != _UUID_BYTES:
            raise CommandError(ErrorCode.InvalidUUID, "uuid must be a 16-byte binary field with UUID (4) subtype")
        return cls(identity, number)

    async def is_executed(self, mongod: Commands) -> bool:
        """Whether the command has been executed; TransactionTooOld if a later one has."""
        last = await last_executed(mongod, self.id)
        if last > self.number:
            raise CommandError(
                ErrorCode.TransactionTooOld,
                f"Retryable write with txnNumber {self.number} is prohibited because a newer one with txnNumber {last} "
                "has already started on this session.",
            )
        return bool(last == self.number)

    async def record(self, mongod: Commands) -> None:
        """Record on a majority that the command has been executed."""
        update = {"q": {"_id": "executed"}, "u": {"$inc": {"count": Int64(1)}}, "upsert": True}
        reply = await mongod.command(
            _CONFIG,
            {
                "update": EXECUTED,
                "updates": [update],
                "lsid": {"id": self.id},
                "txnNumber": Int64(self.number),
                "writeConcern": {"w": "majority"},
            },
        )
        check_writes(reply)


async def last_executed(mongod: Commands, session: Binary) -> int:
    """Return the transaction number of the last executed command of a session; -1 if there is none.

    Raises:
        CommandError: an error of mongod.
        BackendError: mongod does not answer.
    """
    find = {"find": "transactions", "filter": {"_id.id": session}, "singleBatch": True}
    reply = await mongod.command(_CONFIG, find)
    return max((int(entry["txnNum"]) for entry in reply["cursor"]["firstBatch"]), default=-1)


async def execute_once(mongod: Commands, session: CommandSession | None, work: Callable[[], Awaitable[None]]) -> None:
    """Run ``work`` unless it has been executed already. The caller serializes commands about one subject.

    Args:
        session: the command's session; without one it is always executed.
        work: executes the command; if that fails, the command may be repeated.

    Raises:
        CommandError: TransactionTooOld, the sender has sent a newer command; an error of mongod; or from ``work``.
        BackendError: mongod does not answer; or from ``work``.
    """
    if session is not None and await session.is_executed(mongod):
        await wait_for_majority(mongod.command)
        return
    await work()
    if session is not None:
        await session.record(mongod)
