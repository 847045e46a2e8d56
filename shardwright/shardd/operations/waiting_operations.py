"""Operations that wait to be admitted: mongod does not know them yet, so the daemon ends those of killed sessions."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request


class WaitingOperations:
    """The operations of one shard daemon that wait at present."""

    def __init__(self) -> None:
        self._scopes: dict[trio.CancelScope, Request] = {}
        self._killed: set[trio.CancelScope] = set()

    @contextmanager
    def waiting(self, request: Request, seconds_max: float) -> Iterator[None]:
        """Let a request wait in the block, which has to return once it has been admitted.

        Args:
            request: the request.
            seconds_max: for how long.

        Raises:
            CommandError: MaxTimeMSExpired, it has waited for too long; Interrupted, its session was killed.
        """
        with trio.move_on_after(seconds_max) as scope:
            self._scopes[scope] = request
            try:
                yield
            finally:
                del self._scopes[scope]
                is_killed = scope in self._killed
                self._killed.discard(scope)
        if scope.cancelled_caught:
            if is_killed:
                raise CommandError(ErrorCode.Interrupted, "operation was interrupted")
            raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")

    def kill(self, is_killed: Callable[[bytes], bool]) -> None:
        """End those of some sessions, which are given by their ``lsid``."""
        for scope, request in self._scopes.items():
            lsid = request.raw_object(b"lsid")
            if lsid is not None and is_killed(lsid):
                self._killed.add(scope)
                scope.cancel()
