"""The signals that a daemon handles, the same as mongod's and with the same meanings.

SIGTERM, SIGINT and SIGHUP shut it down, SIGUSR1 rotates its logs, SIGUSR2 writes stack traces to the log. With TLS,
SIGHUP has a daemon read its certificates again instead; a mongod would end.
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
"""For example `daemon.log_rotation.DaemonLogs.rotate`."""


def obey_log_signals(on_log_signal: LogAction) -> None:
    """Handle SIGUSR1 and SIGUSR2 from now on, whatever the tasks of the process are doing.

    Args:
        on_log_signal: called at SIGUSR1.
    """
    signal.signal(signal.SIGUSR1, lambda _, frame: run_log_action(on_log_signal))
    signal.signal(signal.SIGUSR2, lambda _, frame: run_log_action(partial(log_stack_traces, frame)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LOG_SIGNALS)


def ending_signals() -> list[signal.Signals]:
    """The signals that shut a daemon down; not SIGHUP if the process should survive its terminal, as under nohup."""
    is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in ENDING_SIGNALS if number != signal.SIGHUP or not is_hangup_ignored]


def obey_ending_signals() -> None:
    """Unblock the signals that shut the process down, which have handlers now (see `hold_back_signals`)."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


async def wait_for_end(
    stop: trio.Event,
    on_hangup: Callable[[], None] | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Set ``stop`` at the first signal to shut down; runs until cancelled, so that further ones have no effect.

    Args:
        stop: see above.
        on_hangup: called at SIGHUP, which then does not shut the process down.
        task_status: see `trio.Nursery.start`.
    """
    received = {*ending_signals(), *(() if on_hangup is None else (signal.SIGHUP,))}
    with trio.open_signal_receiver(*received) as signals:
        obey_ending_signals()
        task_status.started()
        async for number in signals:
            if number == signal.SIGHUP and on_hangup is not None:
                on_hangup()
            else:
                stop.set()


def run_log_action(action: LogAction) -> None:
    """Rotate or reopen the log, or write to it, with further signals of this kind blocked.

    A failure is logged, because there is no way to report it to the signal's sender.
    """
    with log_signals_held_back(), suppress(OSError):
        action()
