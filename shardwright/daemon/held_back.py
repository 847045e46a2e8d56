"""Holding back signals: all of them while a daemon starts, and those that concern the log while it is being written."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

LOG_SIGNALS: Final = (signal.SIGUSR1, signal.SIGUSR2)
ENDING_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


def hold_back_signals() -> None:
    """Have every signal that a daemon obeys wait until it can.

    Called before anything slow is imported. `daemon.signals` lets them through: `obey_log_signals` the first ones,
    `obey_ending_signals` the others.
    """
    signal.pthread_sigmask(signal.SIG_BLOCK, (*LOG_SIGNALS, *ENDING_SIGNALS))


@contextmanager
def log_signals_held_back() -> Iterator[None]:
    """In the block neither signal is acted upon; one that came meanwhile is, once, after it.

    Python runs the handler of a signal between any two steps of the program: in the middle of a rotation, or of a write
    that waits for the reader of a pipe. The handler would then rotate or write as well, and in a burst of signals each
    handler would be interrupted by the next one. A process that is started in the block obeys neither before it calls
    `daemon.signals.obey_log_signals`.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, LOG_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
