"""Operations that wait in the shard daemon, where no mongod knows them: it shows them, and ends killed ones."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import trio

from shardwright.daemon.namespaces import namespace_of
from shardwright.shardd.context.current_op_entry import operation_entry
from shardwright.shardd.context.operation_ids import new_opid
from shardwright.shardd.transactions.session_keys import session_key
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import InvalidBSONError, decode_document, depth_exceeds
from shardwright.wire.request import Request

_SHOWN_MAX: Final = 1_000
"""The most that are shown. Each may have a kilobyte, and all must fit into a command."""

_COMMAND_BYTES_MAX: Final = 16_384
_COMMAND_LEVELS_MAX: Final = 100
"""Of a command that is larger or nested more deeply, only what it is about is shown. All have to fit into a command."""


_OF_NO_COLLECTION: Final = "$cmd"

TO_BE_ADMITTED: Final = "waits until its placement is known and may be used"
FOR_COMMITS: Final = "was executed before, and waits until all shards have committed that"


@dataclass(slots=True, eq=False)
class _Waiting:
    request: Request
    scope: trio.CancelScope
    why: str
    opid: int = field(default_factory=new_opid)
    began: datetime = field(default_factory=lambda: datetime.now(UTC))
    is_killed: bool = False

    def kill(self) -> None:
        self.is_killed = True
        self.scope.cancel()


class WaitingOperations:
    """The operations of one shard daemon that wait at present."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    @contextmanager
    def waiting(self, request: Request, seconds_max: float, why: str = TO_BE_ADMITTED) -> Iterator[None]:
        """Let a request wait in the block, which has to return once that is over.

        Args:
            request: the request.
            seconds_max: for how long.
            why: for what, as shown.

        Raises:
            CommandError: MaxTimeMSExpired, it has waited for too long; Interrupted, it or its session was killed.
        """
        with trio.move_on_after(seconds_max) as scope:
            waiting = _Waiting(request, scope, why)
            self._waiting[waiting.opid] = waiting
            try:
                yield
            finally:
                del self._waiting[waiting.opid]
        if scope.cancelled_caught:
            if waiting.is_killed:
                raise CommandError(ErrorCode.Interrupted, "operation was interrupted")
            raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")

    def operations(self, address: str) -> list[dict[str, Any]]:
        """Those that have waited for longest, as ``currentOp`` shows them.

        Args:
            address: ``host:port`` of this daemon.
        """
        return [_entry(each, address) for each in islice(self._waiting.values(), _SHOWN_MAX)]

    def kill(self, opid: int) -> bool:
        """End the one that `operations` shows under a number; returns whether there is one."""
        waiting = self._waiting.get(opid)
        if waiting is not None:
            waiting.kill()
        return waiting is not None

    def kill_sessions(self, is_killed: Callable[[bytes], bool]) -> None:
        """End the operations of some sessions, given by their ``lsid``."""
        for waiting in self._waiting.values():
            lsid = waiting.request.raw_object(b"lsid")
            if lsid is not None and is_killed(lsid):
                waiting.kill()


def _entry(waiting: _Waiting, address: str) -> dict[str, Any]:
    request = waiting.request
    lsid = request.fields.get(b"lsid")
    session = None if lsid is None else session_key(request.body, lsid)
    details = {
        **({} if session is None else {"lsid": decode_document(session)}),
        "ns": _namespace(request),
        "command": _shown_command(request),
        "msg": waiting.why,
    }
    return operation_entry("conn", address, waiting.opid, waiting.began, details, waits=True)


def _shown_command(request: Request) -> dict[str, Any]:
    with suppress(InvalidBSONError):  # which mongod reports, once it gets the command
        if len(request.body) <= _COMMAND_BYTES_MAX and not depth_exceeds(request.body, _COMMAND_LEVELS_MAX):
            return request.document
    collection = _namespace(request).removeprefix(f"{request.db}.")
    return {request.name: 1 if collection == _OF_NO_COLLECTION else collection}


def _namespace(request: Request) -> str:
    named = namespace_of(request)
    return f"{request.db}.{_OF_NO_COLLECTION}" if named == request.db else named
