"""The range deletions of each namespace, as all operations have to know them.

`RangeDeletions` writes here what it reads and changes in ``config.rangeDeletions``; filters of orphans and refreshes
only read. So neither side has to know the other.
"""

from collections.abc import Callable, Sequence

import trio

from shardwright.shardd.orphans.range_deletion_task import RangeDeletionTask


class RangeDeletionTasks:
    """What is known of them. Their ranges are always current; how many orphans are left need not be.

    Args:
        on_change: called with the name of a namespace when it has other range deletions than before.
    """

    def __init__(self, on_change: Callable[[str], None]) -> None:
        self._tasks: dict[str, Sequence[RangeDeletionTask]] = {}
        self._on_change = on_change
        self._loaded = trio.Event()

    def of(self, namespace: str) -> Sequence[RangeDeletionTask]:
        """The range deletions of a collection, of whatever UUID, that have not ended."""
        return self._tasks.get(namespace, ())

    def put(self, namespace: str, tasks: Sequence[RangeDeletionTask]) -> None:
        """A namespace has these from now on."""
        if tasks:
            self._tasks[namespace] = tasks
        else:
            self._tasks.pop(namespace, None)
        self._on_change(namespace)

    def set_loaded(self) -> None:
        """All that is persisted has been put here."""
        self._loaded.set()

    def unload(self) -> None:
        """What is persisted has to be read again."""
        self._loaded = trio.Event()

    async def wait_loaded(self) -> None:
        """Return once what is persisted has been read."""
        await self._loaded.wait()
