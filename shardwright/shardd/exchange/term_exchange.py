"""One operation's exchange with mongod, which withholds the reply of another term.

An operation is admitted by the placement that the daemon has cached, which is valid in one term of its mongod. It may
be executed in another term if the process, or mongod, was suspended in between. By then this shard may own other
ranges: a write would be lost to the collection, and documents missing from a read may be elsewhere.

* For writes, and for reads that promise the newest state (``linearizable``), mongod has to report its term in the
  reply.
* Other reads are answered if the daemon has seen no other term when the reply begins to arrive, and the process was not
  suspended meanwhile. This is less strict, because mongod reports a new term at once, but on another connection. It
  costs a look at the clock, and allows long replies to be relayed while they arrive.

An operation that waited after its admission is not sent if the term has ended.

The client's connection is closed if its reply is withheld, as if mongod had failed.

The fields that a plain mongod does not accept are cut out of the request (`without_sharding_fields`). Running
operations are counted by the period in which they began (`OperationGeneration`).
"""

import math
from collections.abc import Mapping
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod, Upstream
from shardwright.daemon.sidecar.sidecar import Sidecar
from shardwright.daemon.sidecar.term_fence import ASK_FOR_TERM, check_term, has_failed, take_term, working_for
from shardwright.sharding.clock import VectorTime
from shardwright.sharding.pipelines.pipeline import INVOLVED_NAMESPACES
from shardwright.sharding.transaction_protocol import MAY_CHANGE_OWNER
from shardwright.sharding.versions import VERSION_FIELDS
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import Span, append, decode_document, without_spans
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun
from shardwright.wire.transport.reactor import REACTOR, in_own_task, may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.shardd.orphans.ownership_filter import OwnershipFilter

logger = get_logger("shardd.terms")

_SHARDING_FIELDS: Final = (*VERSION_FIELDS, INVOLVED_NAMESPACES, MAY_CHANGE_OWNER)
_start_of = itemgetter(1)

_LINEARIZABLE: Final = b"linearizable"
_READ_CONCERN: Final = b"readConcern"
_ROLE_CHANGES: Final = (Category.NOT_PRIMARY, Category.SHUTDOWN, Category.INTERRUPTION)


def seconds_allowed(request: Request) -> float:
    """Return the time limit in seconds from ``maxTimeMS``; infinite without one."""
    max_time_ms = request.get(b"maxTimeMS")
    return max_time_ms / 1000 if isinstance(max_time_ms, int | float) and max_time_ms > 0 else math.inf


async def gossip(mongod: LocalMongod, known: int = 0) -> dict[str, Any]:
    """Return mongod's current ``$clusterTime`` and ``operationTime``.

    Args:
        known: a packed cluster time to advance mongod's clock to first.

    Raises:
        CommandError: InterruptedDueToReplStateChange, the task's term is over, so its work may be rolled back.
    """
    try:
        pong = await mongod.command("admin", {"ping": 1, **VectorTime(known).gossip()})
    except (BackendError, CommandError) as error:
        if isinstance(error, CommandError) and error.code == ErrorCode.InterruptedDueToReplStateChange:
            raise
        return {}  # stepping down or unreachable; the command has been executed, and its reply matters more
    return {field: pong[field] for field in ("$clusterTime", "operationTime") if field in pong}


def without_sharding_fields(request: Request, more: bytes = b"") -> bytes:
    """Return a request's frame without sharding fields, with its id, flags and other sections.

    Args:
        more: elements to append to the body.
    """
    found = sharding_spans(request)
    if not found:
        return request.message.frame_with(append(request.body, more))
    return request.message.frame_with(without_spans(request.body, found, more))


def sharding_spans(request: Request) -> list[Span]:
    """Return the spans of the sharding fields in a request, in order."""
    fields = request.fields
    return sorted([fields[name] for name in _SHARDING_FIELDS if name in fields], key=_start_of)


class OperationGeneration:
    """The operations on one namespace between two calls of `NamespaceState.wait_earlier_operations`.

    Attributes:
        is_superseded: whether unanswered reads have to be repeated. The collection is being renamed, or a range is
            about to be received that they must not see but do not filter.
        hidden: the ranges about to be received.
    """

    __slots__ = ("_change", "_count", "_writers", "hidden", "is_superseded")

    def __init__(self) -> None:
        self.is_superseded = False
        self.hidden: tuple[OwnershipFilter, ...] = ()
        self._count = 0
        self._writers = 0
        self._change: trio.Event | None = None  # if it is awaited

    @property
    def is_over(self) -> bool:
        """Whether no operation of the generation is running."""
        return not self._count

    def enter(self, *, is_write: bool) -> None:
        """Count the start of an operation."""
        self._count += 1
        if is_write:
            self._writers += 1

    def exit(self, *, is_write: bool) -> None:
        """Count the end of an operation."""
        self._count -= 1
        if is_write:
            self._writers -= 1
        if self._change is not None and not (self._count and self._writers):
            self._change.set()
            self._change = None

    async def wait_over(self) -> None:
        """Return when no operation of the generation is running."""
        while self._count:
            await self._wait_change()

    async def wait_writes_over(self) -> None:
        """Return when no write of the generation is running."""
        while self._writers:
            await self._wait_change()

    async def _wait_change(self) -> None:
        if self._change is None:
            self._change = trio.Event()
        await self._change.wait()


class TermExchange:
    """One operation's exchange with mongod, created at the moment of its admission.

    Args:
        upstream: the client's connection to mongod.
        operations: the generation that counts the operation.
        begun: the operation, if it was already sent.
        term: the term of that operation's admission.
        must_report_term: whether mongod has to report the operation's term in the reply.
        is_whole: whether the caller needs the whole reply, so that it must not be relayed while it arrives.

    Attributes:
        passed_on: the last operation that `run` was called with.
    """

    __slots__ = ("_begun", "_must_report_term", "_sidecar", "_term", "_upstream", "is_whole", "operations", "passed_on")

    def __init__(
        self,
        sidecar: Sidecar,
        upstream: Upstream,
        operations: OperationGeneration,
        *,
        must_report_term: bool,
        is_whole: bool,
        begun: Begun | None = None,
        term: int | None = None,
    ) -> None:
        self._sidecar = sidecar
        self._begun = begun
        self._term = sidecar.mirror.term if begun is None else term
        self.passed_on: Request | None = None
        self._must_report_term = must_report_term
        self.is_whole = is_whole
        self.operations = operations
        self._upstream = upstream

    @may_run_in_reactor
    async def run(self, request: Request) -> bytes | None:
        """Run the operation; return the reply, or None if there is none or it was already relayed.

        Raises BackendError if mongod does not answer, the term ended before the sending, or another term executed it.
        """
        flags = request.message.flags
        self.passed_on = request
        begun, self._begun = self._begun, None
        if begun is not None:
            is_whole = self._must_report_term or self.is_whole
            reply = await self._upstream.receive(begun, None if is_whole else self._may_begin)
            if self._must_report_term:
                return None if reply is None else self._acknowledged(reply)
        elif self._must_report_term:
            reply = await self.forward(without_sharding_fields(request, ASK_FOR_TERM), flags)
            return None if reply is None else self._acknowledged(reply)
        elif self.is_whole:
            reply = await self.forward(without_sharding_fields(request), flags)
        else:
            frame = without_sharding_fields(request)
            await self._prepare_to_send()
            reply = await self._upstream.pass_on(frame, flags, self._may_begin)
        if not self._is_known_to_last():
            await in_own_task()
            await self._sidecar.certainty.wait_certain()
            if self._sidecar.mirror.term not in (self._term, None):
                raise self._refusal()
        return reply

    @may_run_in_reactor
    async def forward(self, frame: bytes, flags: int) -> bytes | None:
        """Run one step of the operation as `Upstream.forward` does, or raise BackendError if its term has ended."""
        await self._prepare_to_send()
        return await self._upstream.forward(frame, flags)

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """Run one step of the operation as `Upstream.command` does, or raise BackendError if its term has ended."""
        await self._prepare_to_send()
        return await self._upstream.command(db, command)

    @may_run_in_reactor
    async def confirm(self) -> None:
        """Check with mongod that the term of the operation's admission continues.

        Raises InterruptedDueToReplStateChange if it is over.
        """
        if self._must_report_term:
            await in_own_task()
            reign = await self._sidecar.certainty.present_reign()
            check_term(self._term, reign and reign.term)
            with working_for(reign):
                await self._sidecar.mongod.command("admin", {"ping": 1})

    @may_run_in_reactor
    async def _prepare_to_send(self) -> None:
        """Check that the term lasts, without a checkpoint between the check and the sending.

        An operation that has been in the reactor since its admission has only waited for mongod, so it needs no check.
        """
        if not self._upstream.is_open:
            await self._upstream.open()
        if REACTOR.loop is not None or self._is_known_to_last():
            return
        await in_own_task()
        await self._sidecar.certainty.wait_certain()
        term = self._sidecar.mirror.term
        if term != self._term and (self._must_report_term or term is not None):
            logger.warning("Not sending an operation because its term has ended", term=self._term)
            raise BackendError(self._sidecar.mongod.socket_path, "has begun another term", sent=False)

    def _may_begin(self) -> bool:
        """Whether a long reply may be relayed while it arrives, because the operation will not have to be repeated."""
        return not self.operations.is_superseded and self._is_known_to_last()

    def _is_known_to_last(self) -> bool:
        """Whether a read may be answered. A secondary that was elected since then has the same data as before."""
        term = self._term
        return term is None or (self._sidecar.certainty.is_certain and self._sidecar.mirror.term == term)

    def _acknowledged(self, reply: bytes) -> bytes:
        reply, term = take_term(reply)
        if term == self._term:
            return reply
        if has_failed(reply) and (term is None or _reports_role_change(reply)):
            return reply
        raise self._refusal()

    def _refusal(self) -> BackendError:
        logger.warning("Withholding a reply because the operation ran in another term", term=self._term)
        return BackendError(self._sidecar.mongod.socket_path, "replied in another term", sent=True)


def is_linearizable(request: Request) -> bool:
    """Whether a request is a read with read concern ``linearizable``."""
    span = request.fields.get(_READ_CONCERN)
    return span is not None and request.body.find(_LINEARIZABLE, span[2], span[3]) >= 0


def _reports_role_change(reply: bytes) -> bool:
    code = decode_document(OpMsg(reply).body).get("code", 0)
    return any(has_category(code, each) for each in _ROLE_CHANGES)
