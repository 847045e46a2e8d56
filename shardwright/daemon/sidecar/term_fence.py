"""A fence between terms in the mongod itself: writes sent in an earlier term are not executed in a later one.

Checking the term before a write is sent, and in its reply (`take_term`), leaves a gap. A daemon that is paused between
check and sending may send the write when its mongod is primary again, in another term. So writes to ``config`` are
retryable writes of one session, and their transaction number includes the term. Each term begins with such a write,
which is replicated. From then on mongod refuses all lower numbers (TransactionTooOld), on every member that has this
write. The number also identifies the process, so that writes left in mongod's socket by a killed daemon are refused
too.

A daemon that loses its mongod steps down. It may find the mongod primary in the same term again, and then begins
another `Reign` of that term, from the persisted state alone. A task may continue for a moment after the end of the
reign in which it was started, until it is cancelled. It declares its reign, child tasks inherit the declaration, and
`daemon.sidecar.mongod` sends none of its commands in another reign. A command that was already sent when its task was
cancelled may still be executed, because mongod reads arrived data before it detects that a connection was closed. So a
reign waits until mongod has closed every connection with an unanswered command of an earlier one.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from struct import Struct
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import UUID

import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.daemon.users import RESERVED_ID_START
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.frames import OP_MSG
from shardwright.wire.logger import get_logger
from shardwright.wire.message import CHECKSUM_PRESENT, OpMsg, with_body
from shardwright.wire.rawbson import INT32, INT64, element, find, without
from shardwright.wire.transport.client import Connection

if TYPE_CHECKING:
    from shardwright.wire.transport.pool import Pool

logger = get_logger("daemon.sidecar.term_fence")


@dataclass(frozen=True, slots=True)
class Reign:
    """The time from a step-up of the daemon to its next step-down, in one term of its mongod.

    Attributes:
        term: the mongod's term.
        number: higher than in all earlier reigns of this process.
    """

    term: int
    number: int


_REIGN: Final[ContextVar[Reign | None]] = ContextVar("reign", default=None)

FAILED: Final = b"\x01ok\0" + bytes(8)
"""A failed command's reply begins with ``ok: 0``, a mongod's as well as a daemon's."""

BODY_ELEMENTS_AT: Final = 25
"""Offset of the body's elements in the frame."""


@contextmanager
def working_for(reign: Reign | None) -> Iterator[None]:
    """Declare, for the block, that this task works for a reign; None means for no particular one."""
    token = _REIGN.set(reign)
    try:
        yield
    finally:
        _REIGN.reset(token)


def reign_of_task() -> Reign | None:
    """Return the reign for which this task works; None for no particular one."""
    return _REIGN.get()


def term_of_task() -> int | None:
    """Return the term for which this task works; None for no particular term."""
    reign = _REIGN.get()
    return None if reign is None else reign.term


def check_term(expected: Reign | int | None, found: Reign | int | None) -> None:
    """Check that the expected term, or reign, is still the current one (InterruptedDueToReplStateChange)."""
    if expected != found:
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")


FENCE_SESSION_ID: Final = UUID(bytes=RESERVED_ID_START + b"\0\0\0\0\xff")
"""The id of the session, the same on all members."""

KEEP_ALIVE_SECONDS: Final = 600.0
"""Shorter than the 30 idle minutes after which mongod discards a session."""

_CONFIG: Final = "config"

_FENCE: Final = "term_fence"

_TERM_SHIFT: Final = 40

_BLOCK_SHIFT: Final = 20
"""A number consists of the term, the count of this fence's starts in that term, and a counter."""

_STATEMENTS_PER_NUMBER: Final = 1_000
"""mongod keeps the statements of the last number in memory."""

_STATEMENTS: Final = {"insert": "documents", "update": "updates", "delete": "deletes", "findAndModify": None}


class FencedMongod(Protocol):
    """The mongod that is fenced, as a `daemon.sidecar.mongod.LocalMongod`."""

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a command."""

    async def execute_write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command unchanged."""

    async def check_term_before(self) -> None:
        """Refuse a write of a reign that is over."""


class TermFence:
    """The fence that makes the writes of a term fail in any later one.

    Methods that access mongod raise BackendError if it does not answer.
    """

    def __init__(self, mongod: FencedMongod) -> None:
        self._mongod = mongod
        self._term: int | None = None
        self._number = 0
        self._next_statement = 0
        self._under_way = 0
        self._begun = trio.Event()

    async def begin(self, term: int) -> None:
        """Start a term: from now on mongod refuses commands sent in earlier terms, or by earlier processes.

        The write need not wait for a majority. Later writes of the term follow it in the oplog, so a member that has
        any of them has the fence.

        Raises:
            CommandError: mongod is not primary in this term.
        """
        if self._term == term and self._begun.is_set():
            return
        find = {"find": "transactions", "filter": {"_id.id": _session()["id"]}, "singleBatch": True}
        reply = await self._mongod.command(_CONFIG, find)
        last = max((int(entry["txnNum"]) for entry in reply["cursor"]["firstBatch"]), default=0)
        next_block = (max(last, self._number) >> _BLOCK_SHIFT) + 1 << _BLOCK_SHIFT
        self._number, self._next_statement = max(term << _TERM_SHIFT, next_block), 0
        self._term = term
        await self._mark()
        self._begun.set()

    def end(self) -> None:
        """End the term: writes of the next one wait until it has begun."""
        self._term = None
        waiting, self._begun = self._begun, trio.Event()
        waiting.set()

    async def keep(self) -> None:
        """Write periodically until cancelled, so that mongod does not discard the number."""
        await self._begun.wait()
        while True:
            await trio.sleep(KEEP_ALIVE_SECONDS)
            try:
                await self._mark()
            except (CommandError, BackendError) as error:
                logger.warning("Could not write the term's fence", error=str(error))

    async def _mark(self) -> None:
        update = {"q": {"_id": "fence"}, "u": {"$set": {"term": self._term}, "$inc": {"count": Int64(1)}}}
        command = {"update": _FENCE, "updates": [{**update, "upsert": True}], "writeConcern": {"w": 1}}
        with self._numbered(command, 1) as numbered:
            await self._mongod.execute_write(_CONFIG, numbered)

    async def write(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run a write command in this term or not at all; return its reply.

        Statements that mongod cannot run as retryable writes, because they affect many documents, run without a number.

        Raises:
            CommandError: as `LocalMongod.write`; InterruptedDueToReplStateChange, the term is over.
        """
        count = _statement_count(command) if db == _CONFIG else 0
        term = term_of_task()
        if term is None or not count:
            return await self._mongod.execute_write(db, command)
        if self._term != term:
            await self._mongod.check_term_before()
        await self._begun.wait()
        check_term(term, self._term)
        with self._numbered(command, count) as numbered:
            return await self._mongod.execute_write(db, numbered)

    @contextmanager
    def _numbered(self, command: Mapping[str, Any], count: int) -> Iterator[dict[str, Any]]:
        if self._next_statement >= _STATEMENTS_PER_NUMBER and not self._under_way:
            self._number, self._next_statement = self._number + 1, 0
        statement, self._next_statement = self._next_statement, self._next_statement + count
        self._under_way += 1
        try:
            yield {**command, "lsid": _session(), "txnNumber": Int64(self._number), "stmtId": statement}
        except CommandError as error:
            if error.code != ErrorCode.TransactionTooOld:
                raise
            message = "operation was interrupted: a later term has begun"
            raise CommandError(ErrorCode.InterruptedDueToReplStateChange, message) from error
        finally:
            self._under_way -= 1


def _session() -> dict[str, Any]:
    return {"id": Binary.from_uuid(FENCE_SESSION_ID)}


def _statement_count(command: Mapping[str, Any]) -> int:
    """Return the number of statements of a command as a retryable write; 0 if it cannot be one, or already is one."""
    name = next(iter(command))
    if name not in _STATEMENTS or "lsid" in command:
        return 0
    argument = _STATEMENTS[name]
    if argument is None:
        return 1
    statements = command[argument]
    if any(_has_many(each) for each in statements if name != "insert"):
        return 0
    return len(statements)


def _has_many(statement: Mapping[str, Any]) -> bool:
    return bool(statement.get("multi")) or statement.get("limit") == 0


_POLL_SECONDS: Final = 0.02
"""The polling interval; mongod does not report when it has closed a connection."""


class UnansweredCommands:
    """The connections on which a command of a reign waits for its reply, or was left unanswered."""

    def __init__(self, pool: "Pool") -> None:
        self._pool = pool
        self._reigns: dict[tuple[str, int], Reign] = {}

    @contextmanager
    def noted(self, connection: Connection, reign: Reign) -> Iterator[None]:
        """Record a command that is sent and answered in the block; if the block fails, it counts as unanswered."""
        key = _process_of(connection), connection.hello["connectionId"]
        self._reigns[key] = reign
        yield
        del self._reigns[key]

    async def wait_earlier_over(self) -> None:
        """Kill commands of reigns before this task's, and wait until mongod cannot execute any more of them.

        The commands of its own reign continue, even if a failed attempt to take over has sent them.

        Raises:
            CommandError: mongod refuses to list its operations.
            BackendError: it does not answer.
        """
        present = reign_of_task()
        assert present is not None, "only the work of a reign has earlier reigns"
        while earlier := {key: reign for key, reign in self._reigns.items() if reign.number < present.number}:
            connection = await self._pool.borrow()
            try:
                process = _process_of(connection)
                open_now = await _connections(connection, [number for _, number in earlier])
                for key in earlier:
                    if key[0] != process or key[1] not in open_now:
                        del self._reigns[key]
                for operation_id in filter(None, open_now.values()):
                    await connection.command("admin", {"killOp": 1, "op": operation_id})
            finally:
                self._pool.give_back(connection)
            if open_now:
                terms = sorted({reign.term for reign in earlier.values()})
                logger.info("Waiting for commands sent before the step-up", connections=sorted(open_now), terms=terms)
                await trio.sleep(_POLL_SECONDS)


def _process_of(connection: Connection) -> str:
    """Identify the mongod process of a connection, since connection numbers start again with each process."""
    return str(connection.hello["topologyVersion"]["processId"])


async def _connections(connection: Connection, numbers: list[int]) -> dict[int, Any]:
    """Return the connections that mongod still has, each with the id of its operation or None."""
    everything = {"$currentOp": {"allUsers": True, "idleConnections": True, "localOps": True}}
    pipeline = [everything, {"$match": {"connectionId": {"$in": numbers}}}]
    reply = await connection.command("admin", {"aggregate": 1, "pipeline": pipeline, "cursor": {"batchSize": 10_000}})
    return {each["connectionId"]: each.get("opid") for each in reply["cursor"]["firstBatch"]}


def has_failed(reply: bytes | None) -> bool:
    """Whether a reply's frame reports a failed command."""
    return reply is not None and reply.startswith(FAILED, BODY_ELEMENTS_AT)


ASK_FOR_TERM: Final = element(b"$replData", INT32, (1).to_bytes(4, "little"))
"""The element to append to the body of a request."""

_REPL_DATA: Final = b"$replData"

_METADATA: Final = b"\x03" + _REPL_DATA + b"\0"

_REPLY_TERM: Final = b"\x12term\0"

_TERM_AT: Final = len(_METADATA) + 4 + len(_REPLY_TERM)

_TAIL_BYTES: Final = 1024
"""More than the size of the elements after the command's own."""

_FRAME_PREFIX: Final = Struct("<iiiiIBi")
"""The header of an OP_MSG, its flags, the kind of its first section, and the length of its body."""


def take_term(frame: bytes) -> tuple[bytes, int | None]:
    """Split a reply into the reply without the added elements, and the term in them; None if nothing was added.

    mongod adds nothing if it refuses a command before processing it, for example an unknown one. The error may then
    quote any bytes of the client, so all elements must be parsed.
    """
    start = frame.rfind(_METADATA, -_TAIL_BYTES)
    if start < 0:
        return frame, None
    if has_failed(frame):
        return _take_term_of_any(frame)
    length, request_id, response_to, _, flags, kind, body_bytes = _FRAME_PREFIX.unpack_from(frame)
    document_at = start + len(_METADATA)
    metadata_bytes = len(_METADATA) + int.from_bytes(frame[document_at : document_at + 4], "little")
    is_plain = not flags & CHECKSUM_PRESENT and not kind and body_bytes == length - 21
    if not is_plain or not frame.startswith(_REPLY_TERM, document_at + 4):
        return _take_term_of_any(frame)
    term = int.from_bytes(frame[start + _TERM_AT : start + _TERM_AT + 8], "little")
    prefix = _FRAME_PREFIX.pack(
        length - metadata_bytes, request_id, response_to, OP_MSG, flags, 0, body_bytes - metadata_bytes
    )
    return prefix + frame[_FRAME_PREFIX.size : start] + frame[start + metadata_bytes :], term


def term_of_body(body: bytes) -> int | None:
    """Return the term in the body of a reply; None if there is none."""
    metadata = find(body, _REPL_DATA)
    term = None if metadata is None else find(body, b"term", metadata[2])
    return None if term is None or term[0] != INT64 else int.from_bytes(body[term[2] : term[3]], "little")


def _take_term_of_any(frame: bytes) -> tuple[bytes, int | None]:
    message = OpMsg(frame)
    term = term_of_body(message.body)
    if term is None:
        return frame, None
    return with_body(frame, without(message.body, {_REPL_DATA})), term
