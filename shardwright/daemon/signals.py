"""The signals that a daemon obeys: those of mongod, with mongod's meanings.

SIGTERM, SIGINT and SIGHUP end it in order, SIGUSR1 rotates its log, SIGUSR2 writes stack traces to the log.
"""

import signal
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TypeAlias

import trio

from shardwright.daemon.held_back import ENDING_SIGNALS, LOG_SIGNALS, log_signals_held_back
from shardwright.daemon.stack_traces import log_stack_traces

LogAction: TypeAlias = Callable[[], None]
"""`daemon.logs.rotate_logs`, for example."""


def obey_log_signals(on_log_signal: LogAction) -> None:
    """Obey SIGUSR1 and SIGUSR2 from here on, whatever the tasks of the process are doing.

    Args:
        on_log_signal: what is done at SIGUSR1.
    """
    signal.signal(signal.SIGUSR1, lambda _, frame: run_log_action(on_log_signal))
    signal.signal(signal.SIGUSR2, lambda _, frame: run_log_action(partial(log_stack_traces, frame)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LOG_SIGNALS)


def ending_signals() -> list[signal.Signals]:
    """Those that end a daemon. SIGHUP is not, where the process was started to survive its terminal, as by nohup."""
    is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in ENDING_SIGNALS if number != signal.SIGHUP or not is_hangup_ignored]


def obey_ending_signals() -> None:
    """Let the signals that end the process through, if it was started with `hold_back_signals`; they have handlers."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


async def wait_for_end(stop: trio.Event, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
    """Set ``stop`` at the first signal to end; runs until cancelled, so that further ones change nothing."""
    with trio.open_signal_receiver(*ending_signals()) as signals:
        obey_ending_signals()
        task_status.started()
        async for _ in signals:
            stop.set()


def run_log_action(action: LogAction) -> None:
    """Rotate or reopen the log, or write to it, undisturbed by further signals of this kind.

    A failure is logged; the sender of the signal hears nothing either way.
    """
    with log_signals_held_back(), suppress(OSError):
        action()
