"""Writing the stacks of all threads and tasks of the process to the log, as mongod does at SIGUSR2.

Thousands of tasks tend to wait at the same few points, so equal stacks share one line.
"""

import sys
import threading
import traceback
from collections import Counter
from collections.abc import Iterator
from types import FrameType
from typing import Final, TypeAlias

import trio

from shardwright.wire.logger import get_logger

logger = get_logger("daemon.stack_traces")

Stack: TypeAlias = tuple[str, ...]
"""The frames of one thread or task, outermost first: ``file:line function``."""

STACKS_MAX: Final = 200
"""The maximum number of different stacks of tasks to write; the most frequent come first."""


def log_stack_traces(interrupted: FrameType | None) -> None:
    """Write a line for each thread, and one for each different stack of trio tasks.

    Args:
        interrupted: the calling thread's frame when the signal arrived; None omits that thread.
    """
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
