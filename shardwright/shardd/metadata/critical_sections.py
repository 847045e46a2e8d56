"""Critical sections that hold a namespace during a change that no operation may see half done.

A running write may take minutes: an index build, an update of all documents, a write concern that cannot be met. Other
operations must not wait that long for the change, so every wait here is bounded, and then fails with LockBusy. MongoDB
waits five minutes for a DDL lock before that error.
"""

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any, Final

import trio

from shardwright.daemon.backoff import Backoff
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("shardd.critical_sections")

CRITICAL_SECTIONS: Final = "collection_critical_sections"
"""The collection of ``config`` with the critical sections that the next primary has to restore, by namespace."""

DRAIN_SECONDS_MAX: Final = 0.5
"""Time that new writes wait for running writes before they are admitted again."""

TRANSACTION_SECONDS_MAX: Final = 5.0
"""Time that a transaction's statement waits for a critical section, which usually lasts less than a tenth of it."""

_TRANSACTION_DRAIN_SECONDS_MAX: Final = TRANSACTION_SECONDS_MAX + 1.0
"""Extended wait if open transactions remain, because they may be waiting for the same change on another shard.

Not longer, because other writes may be waiting for these transactions.
"""

HOLD_SECONDS_MAX: Final = 300.0
"""Time to keep trying before LockBusy."""


@asynccontextmanager
async def held_exclusively(state: NamespaceState, reason: Mapping[str, Any]) -> AsyncIterator[None]:
    """Block writes, wait for running writes, then block reads, until the block ends.

    If the running writes do not end soon, new ones are admitted again and the whole sequence is retried later. At the
    end the namespace's metadata is dropped unless it was refreshed in the block, so that waiting operations use current
    metadata.
    """
    await _block_writes(state, reason)
    with _closed(state):
        yield


async def enter_exclusively(state: NamespaceState, reason: Mapping[str, Any]) -> None:
    """Run `held_exclusively` until `leave`, for a coordinator that ends the critical section by another command.

    Does nothing if the section with this reason is already in effect. The other shards enter the same section;
    transactions that are open here and wait there end soon. If new ones were admitted here first, they would wait there
    as well. Clients repeat a failed transaction at once, so there would always be some.
    """
    section = state.critical_section
    if section is None or section.reason != reason or not section.blocks_reads:
        await _block_writes(state, reason, _TRANSACTION_DRAIN_SECONDS_MAX)
        state.block_reads()


async def restore(state: NamespaceState, reason: Mapping[str, Any]) -> None:
    """Enter a critical section of an earlier term again; no operation has been admitted since."""
    await state.enter_section(reason)
    state.block_reads()


def leave(state: NamespaceState, reason: Mapping[str, Any]) -> None:
    """End the critical section with this reason, if it is in effect."""
    if state.critical_section is not None and state.critical_section.reason == reason:
        state.release()


async def _block_writes(state: NamespaceState, reason: Mapping[str, Any], transaction_seconds: float = 0.0) -> None:
    backoff = Backoff(first_seconds=0.1, seconds_max=10.0)
    with trio.move_on_after(HOLD_SECONDS_MAX) as patience:
        while not await _try_block_writes(state, reason, transaction_seconds):
            logger.info(
                "Writes in progress are delaying a DDL operation", namespace=state.namespace, writers=state.writers
            )
            await backoff.pause()
    if patience.cancelled_caught:
        raise _busy(state)


@asynccontextmanager
async def closed(state: NamespaceState, reason: Mapping[str, Any]) -> AsyncIterator[None]:
    """Block writes and reads until the block ends, without waiting for running ones.

    Used by a drop, which ends them itself (see `shardd.ddl.participants.drop_here`).
    """
    with trio.move_on_after(HOLD_SECONDS_MAX) as patience:
        await state.enter_section(reason)
    if patience.cancelled_caught:
        raise _busy(state)
    with _closed(state):
        yield


async def _try_block_writes(state: NamespaceState, reason: Mapping[str, Any], transaction_seconds: float) -> bool:
    """Enter a critical section and wait a short time for running writes; leave it again if they do not end.

    Args:
        transaction_seconds: additional wait if open transactions remain.
    """
    is_drained = False
    try:
        with trio.move_on_after(DRAIN_SECONDS_MAX):
            await state.block_writes(reason)
            is_drained = True
        if not is_drained and state.transactions:
            with trio.move_on_after(transaction_seconds):
                await state.block_writes(reason)
                is_drained = True
    finally:
        section = state.critical_section
        if not is_drained and section is not None and section.reason == reason:
            state.release()
    return is_drained


@contextmanager
def _closed(state: NamespaceState) -> Iterator[None]:
    """Make the current critical section block reads too, and end it after the block."""
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


def _busy(state: NamespaceState) -> CommandError:
    return CommandError(
        ErrorCode.LockBusy,
        f"Failed to acquire the critical section of {state.namespace} within {HOLD_SECONDS_MAX:g} seconds: "
        f"{state.writers} writes are running",
    )
