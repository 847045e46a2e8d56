"""The critical section of a collection that is being resharded: from the last write under the old key to the first
operation under the new one.
"""

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.resharding.participation import Participation


class ReshardingSection:
    """The critical section on this shard.

    Args:
        context: this shard daemon's context.
        participation: the operation.
    """

    def __init__(self, context: ShardContext, participation: Participation) -> None:
        self._context = context
        self._namespace = str(participation.namespace)
        self._reason = {"command": "resharding_donor", "collection": self._namespace}

    @property
    def _state(self) -> NamespaceState:
        return self._context.namespace(self._namespace)

    async def block_writes(self) -> None:
        """Block new writes, and return when those under way, and open transactions, have ended."""
        await self._state.block_writes(self._reason)

    async def block_all(self) -> None:
        """Block reads too; secondaries forget the placement, and then ask the primary, where they wait.

        Raises:
            CommandError: mongod refuses.
            BackendError: mongod does not answer.
        """
        await self._state.block_writes(self._reason)
        self._state.block_reads()
        await self._context.store.count_critical_section(self._namespace)

    async def restore(self) -> None:
        """Block reads and writes again in a new term, in which no operation is under way yet."""
        await self._state.enter_section(self._reason)
        self._state.block_reads()

    @property
    def held_writes(self) -> int:
        """How many writes have had to wait for it in this term."""
        section = self._state.critical_section
        return section.held_writes if section is not None and section.reason == self._reason else 0

    def leave(self) -> None:
        """Release the operations that wait, which find the refreshed placement."""
        section = self._state.critical_section
        if section is not None and section.reason == self._reason:
            self._state.release()
