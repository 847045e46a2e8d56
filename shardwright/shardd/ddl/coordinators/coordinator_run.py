"""A coordinator under way, and the requests that wait for its end."""

from collections.abc import Callable, Mapping
from math import inf
from typing import Any

import trio

from shardwright.shardd.ddl.coordinators.coordinator import Coordinator
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document


class WaitingRequests:
    """Requests that wait for something to end, and are ended with the session of their client."""

    def __init__(self) -> None:
        self._sessions: dict[trio.CancelScope, bytes | None] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    async def wait(self, ended: trio.Event, lsid: bytes | None, deadline: float = inf) -> None:
        """Wait for the end.

        Args:
            ended: set then.
            lsid: the session of the request's client.
            deadline: until when, on trio's clock.

        Raises:
            CommandError: MaxTimeMSExpired; Interrupted, the session was killed.
        """
        with trio.CancelScope(deadline=deadline) as scope:
            self._sessions[scope] = lsid
            try:
                await ended.wait()
            finally:
                del self._sessions[scope]
        if scope.cancel_called:
            raise interruption(deadline)

    def of_sessions(self, is_meant: Callable[[bytes], bool]) -> list[trio.CancelScope]:
        """The scopes of those of some sessions."""
        return [scope for scope, lsid in self._sessions.items() if lsid is not None and is_meant(lsid)]


def interruption(deadline: float) -> CommandError:
    """The error of what was ended early: by its deadline, or else by a command."""
    if trio.current_time() >= deadline:
        return CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")
    return CommandError(ErrorCode.Interrupted, "operation was interrupted")


class CoordinatorRun:
    """A coordinator under way.

    Args:
        coordinator: see below.

    Attributes:
        coordinator: the coordinator.
        ended: set once it has ended.
        reply: its result, if it has succeeded.
        error: why it has failed, if it has.
    """

    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.ended = trio.Event()
        self.reply: dict[str, Any] = {}
        self.error: CommandError | None = None
        self._waiting = WaitingRequests()
        self._arguments = dict(coordinator.arguments)
        self._is_left_behind = coordinator.phase is not None

    @property
    def is_joinable(self) -> bool:
        """Whether an equal request may wait for it: the change has not been made, nor given up."""
        coordinator = self.coordinator
        return not coordinator.is_over and (coordinator.phase is not None or not coordinator.beginning.cancel_called)

    def has_arguments(self, requested: Mapping[str, Any]) -> bool:
        """Whether it makes the requested change; the order of fields in a shard key, for example, matters.

        One that a former primary left behind also has what its phases have added, which is not compared.
        """
        own = self._arguments
        names = set(requested) if self._is_left_behind else own.keys() | requested.keys()
        names -= self.coordinator.not_compared
        compared = ({name: each.get(name) for name in sorted(names)} for each in (own, requested))
        return len({encode_document(each) for each in compared}) == 1

    async def result(self, lsid: bytes | None) -> dict[str, Any]:
        """The reply for a request, once the change has been made.

        Args:
            lsid: the session of its client.

        Raises:
            CommandError: it failed; Interrupted, the session was killed.
        """
        await self._waiting.wait(self.ended, lsid)
        if self.error is not None:
            raise self.error
        return dict(self.reply)

    def kill_sessions(self, is_killed: Callable[[bytes], bool]) -> None:
        """End the requests of some sessions; if no other waits for the change, end that."""
        killed = self._waiting.of_sessions(is_killed)
        if killed and len(killed) == len(self._waiting):
            self.coordinator.kill()
            return
        for scope in killed:
            scope.cancel()
