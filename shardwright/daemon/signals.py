"""The signals that a daemon handles, the same as mongod's and with the same meanings.

SIGTERM, SIGINT and SIGHUP shut it down, SIGUSR1 rotates its logs, SIGUSR2 writes stack traces to the log. With an
option file or TLS, SIGHUP makes a daemon reload the file and certificates instead; a mongod would end. Of thousands of
tasks, many wait at the same few points, so equal stacks share one line.
"""

import signal
import sys
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Final, TypeAlias

import trio

from shardwright.daemon.signal_mask import ENDING_SIGNALS, LOG_SIGNALS, log_signals_masked
from shardwright.wire.logger import get_logger

logger = get_logger("daemon.signals")

Stack: TypeAlias = tuple[str, ...]
"""The frames of one thread or task, outermost first: ``file:line function``."""

STACKS_MAX: Final = 200
"""The maximum number of different stacks of tasks to write; the most frequent come first."""


def log_stack_traces(interrupted: FrameType | None) -> None:
    """Log a line for each thread, for this one from the `interrupted` frame, and for each distinct stack of tasks."""
    for name, stack in _thread_stacks(interrupted):
        logger.info("Stack trace of a thread", thread=name, stack=stack)
    tasks = Counter(_task_stacks())
    for stack, count in tasks.most_common(STACKS_MAX):
        logger.info("Stack trace of tasks", count=count, stack=stack)
    logger.info("Stack traces complete", tasks=tasks.total(), different_stacks=len(tasks))


def _thread_stacks(interrupted: FrameType | None) -> Iterator[tuple[str, Stack]]:
    frames = sys._current_frames()
    for thread in threading.enumerate():
        frame = interrupted if thread is threading.current_thread() else frames.get(thread.ident or 0)
        if frame is not None:
            yield thread.name, _described(traceback.walk_stack(frame))[::-1]


def _task_stacks() -> Iterator[Stack]:
    try:
        root = trio.lowlevel.current_root_task()
    except RuntimeError:
        return  # the loop is not running
    left = [root] if root is not None else []
    while left:
        task = left.pop()
        left += [child for nursery in task.child_nurseries for child in nursery.child_tasks]
        yield _described(task.iter_await_frames())


def _described(frames: Iterator[tuple[FrameType, int]]) -> Stack:
    return tuple(f"{frame.f_code.co_filename}:{line} {frame.f_code.co_qualname}" for frame, line in frames)


LogAction: TypeAlias = Callable[[], None]
"""An action at SIGUSR1, for example `daemon.logs.DaemonLogs.rotate`."""


def obey_log_signals(on_log_signal: LogAction) -> None:
    """Handle SIGUSR1, by `on_log_signal`, and SIGUSR2 from now on, whatever the tasks of the process are doing."""
    signal.signal(signal.SIGUSR1, lambda _, frame: run_log_action(on_log_signal))
    signal.signal(signal.SIGUSR2, lambda _, frame: run_log_action(partial(log_stack_traces, frame)))
    signal.pthread_sigmask(signal.SIG_UNBLOCK, LOG_SIGNALS)


def ending_signals() -> list[signal.Signals]:
    """Return the signals that shut a daemon down, without SIGHUP if it is ignored, as under nohup."""
    is_hangup_ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in ENDING_SIGNALS if number != signal.SIGHUP or not is_hangup_ignored]


def obey_ending_signals() -> None:
    """Unblock the signals that shut the process down, which have handlers now (see `mask_signals`)."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDING_SIGNALS)


async def wait_for_end(
    stop: trio.Event,
    on_hangup: Callable[[], None] | None = None,
    *,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Set ``stop`` at the first signal to shut down; runs until cancelled, so that further ones have no effect.

    Args:
        stop: the event to set.
        on_hangup: called at SIGHUP, which then does not shut the process down.
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
    with log_signals_masked(), suppress(OSError):
        action()
