"""Reads during a rename of their collection.

The mongods of different shards rename at different moments. A read that was admitted before may find the collection on
one shard and nothing on another, so its replies must not be merged.
"""

from typing import Final

import trio

from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.sharding.routing_table import RoutingTable

RENAME: Final = "rename"
"""The ``command`` in the reason of a rename's critical section."""

READS_SECONDS_MAX: Final = 1.0
"""Wait for running reads; waiting is cheaper than repeating them."""


async def supersede_reads(state: NamespaceState) -> None:
    """Wait a short time for running reads; the remaining ones are then answered with StaleConfig."""
    with trio.move_on_after(READS_SECONDS_MAX):
        await state.wait_earlier_operations()
    state.supersede_earlier_reads()


def is_renamed(state: NamespaceState, table: RoutingTable) -> bool:
    """Whether a collection is being renamed, or has been renamed since an operation's admission.

    Args:
        state: the state of the name that the operation was sent to.
        table: the routing table at its admission.
    """
    section = state.critical_section
    if section is not None and section.reason.get("command") == RENAME:
        return True
    return state.is_known and (state.table is None or state.table.collection.uuid != table.collection.uuid)
