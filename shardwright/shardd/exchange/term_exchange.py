"""Asking the mongod for an operation, and not answering with what it has done in another term.

An operation is let in by what the daemon knows of the placement, which is true in one term of its mongod. The operation
may be executed in another one: the process can be stopped between the two, and so can mongod. Then this shard may own
other ranges; what was written is no write of the collection's, and what was not found may be elsewhere.

* Writes, and reads that promise the newest state (``linearizable``), have mongod tell its term in the reply.
* Other reads are answered if no other term is known when the reply begins to come, and the process has not been stopped
  meanwhile. That is not as strict: a mongod reports a new term at once, but its hello comes on another connection.
  It costs a look at the clock, and long replies can be passed on while they come.

An operation that had to wait for something after it was let in is not sent if the term has ended meanwhile.

A client whose reply cannot be given finds its connection broken, as it would if the mongod had gone.
"""

from collections.abc import Mapping
from typing import Any, Final

import bson

from shardwright.daemon.sidecar.reply_term import ASK_FOR_TERM, take_term
from shardwright.daemon.sidecar.sidecar import Sidecar
from shardwright.daemon.sidecar.term_scope import working_for
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.shardd.exchange.operation_generation import OperationGeneration
from shardwright.shardd.exchange.sharding_fields import without_sharding_fields
from shardwright.wire.error_codes import Category, has_category
from shardwright.wire.errors import BackendError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import REACTOR
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

logger = get_logger("shardd.terms")

_FAILED: Final = b"\x01ok\0" + bytes(8)
_BODY_ELEMENTS_AT: Final = 25
_LINEARIZABLE: Final = b"linearizable"
_READ_CONCERN: Final = b"readConcern"
_ROLE_CHANGES: Final = (Category.NOT_PRIMARY, Category.SHUTDOWN, Category.INTERRUPTION)


class TermExchange:
    """The exchange of one operation with the mongod, made at the moment in which the operation is let in.

    Args:
        sidecar: knows the term.
        upstream: the client's connection to the mongod.
        operations: those with which the operation was counted in.
        must_tell_term: the reply has to tell in which term it was made.
        is_whole: the reply is wanted here, so it must not be passed on while it comes.
    """

    __slots__ = ("_is_whole", "_must_tell_term", "_operations", "_sidecar", "_term", "_upstream")

    def __init__(
        self,
        sidecar: Sidecar,
        upstream: Upstream,
        operations: OperationGeneration,
        *,
        must_tell_term: bool,
        is_whole: bool,
    ) -> None:
        self._sidecar = sidecar
        self._term = sidecar.mirror.term
        self._must_tell_term = must_tell_term
        self._is_whole = is_whole
        self._operations = operations
        self._upstream = upstream

    @may_run_in_reactor
    async def run(self, request: Request) -> bytes | None:
        """The reply to an operation; None if there is none, or it has been passed on already.

        Raises:
            BackendError: mongod has gone; the term was over before the operation was sent, or it was executed in
                another one.
        """
        flags = request.message.flags
        if self._must_tell_term:
            reply = await self.forward(without_sharding_fields(request, ASK_FOR_TERM), flags)
            return None if reply is None else self._acknowledged(reply)
        frame = without_sharding_fields(request)
        if self._is_whole:
            reply = await self.forward(frame, flags)
        else:
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
        """One step of the operation, as `Upstream.forward`, in its term.

        Raises:
            BackendError: mongod has gone, or the term was over before this was sent.
            CommandError: as `Upstream.forward`.
        """
        await self._prepare_to_send()
        return await self._upstream.forward(frame, flags)

    @may_run_in_reactor
    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        """One step of the operation, as `Upstream.command`, in its term.

        Raises:
            CommandError: as `Upstream.command`.
            BackendError: as `forward`.
        """
        await self._prepare_to_send()
        return await self._upstream.command(db, command)

    @may_run_in_reactor
    async def confirm(self) -> None:
        """Find out whether the term is still the one in which the operation was let in, by asking mongod.

        Raises:
            CommandError: InterruptedDueToReplStateChange, it is not.
            BackendError: mongod does not answer.
        """
        if self._must_tell_term:
            await in_own_task()
            with working_for(self._term):
                await self._sidecar.mongod.command("admin", {"ping": 1})

    @may_run_in_reactor
    async def _prepare_to_send(self) -> None:
        """Find out whether the term lasts; nothing is waited for between the last look at it and the sending.

        What has been in the reactor since it was let in has not waited for anything but mongod.
        """
        if not self._upstream.is_open:
            await self._upstream.open()
        if REACTOR.loop is not None or self._is_known_to_last():
            return
        await in_own_task()
        await self._sidecar.certainty.wait_certain()
        term = self._sidecar.mirror.term
        if term != self._term and (self._must_tell_term or term is not None):
            logger.warning("An operation is not sent in another term than that in which it was let in", term=self._term)
            raise BackendError(self._sidecar.mongod.socket_path, "has begun another term", sent=False)

    def _may_begin(self) -> bool:
        """Whether a long answer may be passed on while it comes: nobody is going to ask again instead."""
        return not self._operations.is_superseded and self._is_known_to_last()

    def _is_known_to_last(self) -> bool:
        """Whether the answer to a read may be given. A secondary that was elected has no other data than before."""
        term = self._term
        return term is None or (self._sidecar.certainty.is_certain and self._sidecar.mirror.term == term)

    def _acknowledged(self, reply: bytes) -> bytes:
        reply, term = take_term(reply)
        if term == self._term:
            return reply
        if reply.startswith(_FAILED, _BODY_ELEMENTS_AT) and (term is None or _tells_role_change(reply)):
            return reply
        raise self._refusal()

    def _refusal(self) -> BackendError:
        logger.warning("An operation was answered in a later term than it was admitted in", term=self._term)
        return BackendError(self._sidecar.mongod.socket_path, "replied in another term", sent=True)


def is_linearizable(request: Request) -> bool:
    """Whether a request is a read with read concern ``linearizable``."""
    span = request.fields.get(_READ_CONCERN)
    return span is not None and request.body.find(_LINEARIZABLE, span[2], span[3]) >= 0


def _tells_role_change(reply: bytes) -> bool:
    code = bson.decode(OpMsg(reply).body).get("code", 0)
    return any(has_category(code, each) for each in _ROLE_CHANGES)
