"""Processes that end with the runner. Each leads a group, and the rest of its group is stopped with it."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import IO, Final

_END_SECONDS_MAX: Final = 30.0
_POLL_SECONDS: Final = 0.02


class StoppedError(Exception):
    """Error after the run was stopped, when no process is started any more."""


class ProcessGroups:
    """The process groups of one run; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_stopped = False

    def run(
        self,
        command: Sequence[str],
        output: IO[bytes],
        timeout: float,
        environment: Mapping[str, str] | None = None,
    ) -> int:
        """Run a command to its end; returns its exit status. Its whole group has ended then.

        Raises:
            StoppedError: the run was stopped.
            subprocess.TimeoutExpired: it did not end within ``timeout`` seconds.
        """
        process = self._start(command, output, environment)
        try:
            status = process.wait(timeout)
        finally:
            with self._lock:
                self._running.discard(process)
            _end(process)
        if self._is_stopped:
            raise StoppedError
        return status

    def stop(self) -> None:
        """End all processes; each `run` raises StoppedError."""
        with self._lock:
            self._is_stopped = True
            running = list(self._running)
        for process in running:
            process.kill()

    def _start(
        self, command: Sequence[str], output: IO[bytes], environment: Mapping[str, str] | None
    ) -> subprocess.Popen[bytes]:
        with self._lock:
            if self._is_stopped:
                raise StoppedError
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=None if environment is None else dict(environment),
            )
            self._running.add(process)
            return process


def _end(leader: subprocess.Popen[bytes]) -> None:
    """Kill the leader, which may ignore signals, then let the rest of its group clean up before it is killed."""
    leader.kill()
    leader.wait()
    deadline = time.monotonic() + _END_SECONDS_MAX
    with suppress(ProcessLookupError):  # the group has ended
        os.killpg(leader.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
            os.killpg(leader.pid, 0)
        os.killpg(leader.pid, signal.SIGKILL)
