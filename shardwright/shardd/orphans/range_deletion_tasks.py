"""The range deletions of each namespace, for operations to look up.

`RangeDeletions` publishes here what it reads and changes in ``config.rangeDeletions``; ownership filters and refreshes
only read. So neither side has to know the other.
"""

from collections.abc import Callable, Sequence

import trio

from shardwright.shardd.orphans.range_deletion_task import RangeDeletionTask


class RangeDeletionTasks:
    """The known range deletions. Their ranges are always current, their orphan counts need not be.

    Args:
        on_change: called with a namespace when its range deletions have changed.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._tasks: dict[str, Sequence[RangeDeletionTask]] = {}
        self._on_change = on_change
        self._loaded = trio.Event()

    def of(self, namespace: str) -> Sequence[RangeDeletionTask]:
        """The unfinished range deletions of a collection, whatever its UUID."""
        return self._tasks.get(namespace, ())

    def put(self, namespace: str, tasks: Sequence[RangeDeletionTask]) -> None:
        """Replace the range deletions of a namespace."""
        if tasks:
            self._tasks[namespace] = tasks
        else:
            self._tasks.pop(namespace, None)
        self._on_change(namespace)

    def set_loaded(self) -> None:
        """Record that all persisted range deletions are known."""
        self._loaded.set()

    def unload(self) -> None:
        """Record that the persisted range deletions have to be read again."""
        if self._loaded.is_set():
            self._loaded = trio.Event()

    async def wait_loaded(self) -> None:
        """Return when the persisted range deletions are known."""
        await self._loaded.wait()
