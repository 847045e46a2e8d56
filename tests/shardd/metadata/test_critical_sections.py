"""Holding a namespace exclusively, with a clock that jumps."""

import pytest
import trio
from trio.testing import MockClock

from shardwright.shardd.metadata import critical_sections
from shardwright.shardd.metadata.critical_sections import closed, enter_exclusively, held_exclusively
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

REASON = {"command": "test"}


@pytest.fixture
def state() -> NamespaceState:
    return NamespaceState("d.c", "me")


def run(test: object) -> None:
    trio.run(test, clock=MockClock(autojump_threshold=0))  # type: ignore[arg-type]


def test_a_long_write_does_not_block_others(state: NamespaceState) -> None:
    """New writes are admitted between the attempts to enter a section that a long write delays."""

    async def main() -> None:
        state.enter(is_write=True)
        operations = state.operations
        waited: list[float] = []

        async def short_write() -> None:
            began = trio.current_time()
            while state.critical_section is not None:
                await state.critical_section.wait_released()
            waited.append(trio.current_time() - began)

        async def hold() -> None:
            async with held_exclusively(state, REASON):
                assert not state.writers

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            for _ in range(20):
                await trio.sleep(1)
                await short_write()
            assert max(waited) <= critical_sections.DRAIN_SECONDS_MAX
            assert 0 in waited
            state.exit(operations, is_write=True)
        assert state.critical_section is None

    run(main)


@pytest.mark.parametrize("writers", [0, 1])
def test_transactions_that_begin_again_at_once_do_not_hold_up_a_change_of_several_shards(
    state: NamespaceState, writers: int
) -> None:
    """Each waits for the same change on another shard, is aborted there, and is begun again by its client; other writes
    wait for these transactions."""

    async def transactions() -> None:
        while True:
            while state.critical_section is not None:
                await state.critical_section.wait_released()
            state.enter_transaction()
            try:
                await trio.sleep(critical_sections.TRANSACTION_SECONDS_MAX)
            finally:
                state.exit_transaction()

    async def write() -> None:
        while True:
            while state.critical_section is not None:
                await state.critical_section.wait_released()
            state.enter(is_write=True)
            operations = state.operations
            await trio.sleep(critical_sections.TRANSACTION_SECONDS_MAX)
            state.exit(operations, is_write=True)
            await trio.sleep(0.01)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            for _ in range(3):
                nursery.start_soon(transactions)
                await trio.sleep(1)
            for _ in range(writers):
                nursery.start_soon(write)
                await trio.sleep(0.1)
            began = trio.current_time()
            await enter_exclusively(state, REASON)
            assert trio.current_time() - began <= critical_sections.TRANSACTION_SECONDS_MAX
            nursery.cancel_scope.cancel()

    run(main)


def test_a_section_is_given_up_if_a_write_does_not_end(state: NamespaceState) -> None:
    async def main() -> None:
        state.enter(is_write=True)
        with pytest.raises(CommandError) as caught:
            async with held_exclusively(state, REASON):
                raise AssertionError("a write is under way")
        assert caught.value.code == ErrorCode.LockBusy
        assert trio.current_time() - begin == pytest.approx(critical_sections.HOLD_SECONDS_MAX)
        assert state.critical_section is None

    begin = 0.0

    async def timed() -> None:
        nonlocal begin
        begin = trio.current_time()
        await main()

    run(timed)


def test_a_cancelled_task_leaves_no_section_behind(state: NamespaceState) -> None:
    async def main() -> None:
        state.enter(is_write=True)
        with trio.move_on_after(0.2):
            async with held_exclusively(state, REASON):
                raise AssertionError("a write is under way")
        assert state.critical_section is None

    run(main)


def test_closing_waits_for_other_sections_and_not_for_writes(state: NamespaceState) -> None:
    async def main() -> None:
        state.enter(is_write=True)
        await state.enter_section({"command": "other"})

        async def close() -> None:
            async with closed(state, REASON):
                assert state.critical_section is not None
                assert state.critical_section.reason == REASON
                assert state.critical_section.blocks_reads

        async with trio.open_nursery() as nursery:
            nursery.start_soon(close)
            await trio.sleep(1)
            state.release()
        assert state.critical_section is None

    run(main)


def test_closing_does_not_wait_indefinitely(state: NamespaceState) -> None:
    async def main() -> None:
        await state.enter_section({"command": "other"})
        with pytest.raises(CommandError) as caught:
            async with closed(state, REASON):
                raise AssertionError("another section is on")
        assert caught.value.code == ErrorCode.LockBusy
        assert state.critical_section is not None

    run(main)
