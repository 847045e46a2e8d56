"""Operations that wait in the shard daemon, invisible to mongod: listed in ``currentOp`` and ended when killed."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

import trio

from shardwright.daemon.command_table import namespace_of
from shardwright.daemon.current_op import new_opid, operation_entry
from shardwright.shardd.transactions.session_keys import session_key
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import InvalidBSONError, decode_document, depth_exceeds
from shardwright.wire.request import Request

_SHOWN_MAX: Final = 1_000
"""Maximum number listed. Each may take a kilobyte, and all must fit into a command."""

_COMMAND_BYTES_MAX: Final = 16_384
_COMMAND_LEVELS_MAX: Final = 100
"""Commands that are larger or nested more deeply are shown by their name and collection only, to bound the list."""

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
    """The waiting operations of one shard daemon."""

    def __init__(self) -> None:
        self._waiting: dict[int, _Waiting] = {}

    @contextmanager
    def waiting(self, request: Request, seconds_max: float, why: str = TO_BE_ADMITTED) -> Iterator[None]:
        """Register a request as waiting while the block runs.

        Args:
            seconds_max: limit for the wait.
            why: the reason to display.

        Raises:
            CommandError: MaxTimeMSExpired, the wait took too long; Interrupted, the operation or its session was
                killed.
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
        """List the operations that have waited longest, as ``currentOp`` entries of the daemon at `address`."""
        return [_entry(each, address) for each in islice(self._waiting.values(), _SHOWN_MAX)]

    def kill(self, opid: int) -> bool:
        """End the operation with the given opid; return whether it exists."""
        waiting = self._waiting.get(opid)
        if waiting is not None:
            waiting.kill()
        return waiting is not None

    def kill_sessions(self, is_killed: Callable[[bytes], bool]) -> None:
        """End the operations of the sessions whose ``lsid`` matches."""
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
    with suppress(InvalidBSONError):  # mongod will report it when it receives the command
        if len(request.body) <= _COMMAND_BYTES_MAX and not depth_exceeds(request.body, _COMMAND_LEVELS_MAX):
            return request.document
    collection = _namespace(request).removeprefix(f"{request.db}.")
    return {request.name: 1 if collection == _OF_NO_COLLECTION else collection}


def _namespace(request: Request) -> str:
    named = namespace_of(request)
    return f"{request.db}.{_OF_NO_COLLECTION}" if named == request.db else named
