"""Holding a namespace for a change that nobody may see half made."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

from shardd.namespace_state import NamespaceState


@asynccontextmanager
async def held_exclusively(state: NamespaceState, reason: Mapping[str, Any]) -> AsyncIterator[None]:
    """Block writes, wait for those under way, then block reads, until the block ends.

    What is known of the namespace is thrown away at the end unless it was learnt inside: operations that waited look
    at what is true then.
    """
    await state.block_writes(reason)
    try:
        state.block_reads()
        generation = state.generation
        yield
    except BaseException:
        state.forget()
        raise
    else:
        if state.generation == generation:
            state.forget()
    finally:
        state.release()
