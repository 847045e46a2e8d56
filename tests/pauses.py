"""Suspending processes."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from shardwright.deploy.processes import ProcessIdentity

_PAUSE_SECONDS_MAX: Final = 60


@contextmanager
def paused(pid: int) -> Iterator[None]:
    """Suspend a process until the block ends, which begins only when none of its threads runs any more."""
    identity = ProcessIdentity.of(pid)
    assert identity is not None
    assert identity.send(signal.SIGSTOP)
    try:
        assert identity.wait_paused(_PAUSE_SECONDS_MAX)
        yield
    finally:
        identity.send(signal.SIGCONT)
