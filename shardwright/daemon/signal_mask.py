"""Blocking signals: all that a daemon handles while it starts, and the log signals while it writes the log."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

ROTATED_SIGNAL: Final = signal.SIGRTMIN
"""Signal from a process to its parent after it has rotated their common logs."""

LOG_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2, ROTATED_SIGNAL)
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def mask_signals() -> None:
    """Block all signals that a daemon handles until its handlers are installed.

    Called before slow imports. `daemon.signals` unblocks them: `obey_log_signals` the signals for the log,
    `obey_ending_signals` the others.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*LOG_SIGNALS, *ENDING_SIGNALS))


@contextmanager
def log_signals_masked() -> Iterator[None]:
    """Block the signals for the logs in the block; one that arrives in it is handled once, afterwards.

    Python runs signal handlers between any two bytecodes, for example during a rotation, or during a write that waits
    for the reader of a pipe. The handler would then rotate or write too, and in a burst of signals each handler would
    be interrupted by the next one. In a process started in the block the signals stay blocked until it calls
    `daemon.signals.obey_log_signals`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LOG_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
