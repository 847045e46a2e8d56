"""Entering, holding and leaving critical sections, with a clock that jumps."""

import pytest
import trio
import trio.testing
from trio.testing import MockClock

from shardwright.shardd.metadata import critical_sections
from shardwright.shardd.metadata.critical_sections import (
    DDL,
    DDL_ON_ALL_SHARDS,
    MOVE,
    Drain,
    ExclusiveSection,
    SectionDriver,
    closed,
    enter_together,
    held_exclusively,
    writers_of,
)
from shardwright.shardd.metadata.database_state import DatabaseState
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
            async with held_exclusively(ExclusiveSection(state, REASON)):
                assert not state.writers

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold)
            for _ in range(20):
                await trio.sleep(1)
                await short_write()
            assert max(waited) <= DDL.attempt
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
            await enter_together([ExclusiveSection(state, REASON, DDL_ON_ALL_SHARDS)])
            assert trio.current_time() - began <= critical_sections.TRANSACTION_SECONDS_MAX
            nursery.cancel_scope.cancel()

    run(main)


def test_a_section_is_given_up_if_a_write_does_not_end(state: NamespaceState) -> None:
    async def main() -> None:
        state.enter(is_write=True)
        with pytest.raises(CommandError) as caught:
            async with held_exclusively(ExclusiveSection(state, REASON)):
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


def test_a_section_waits_for_the_writes_of_another_without_blocking(state: NamespaceState) -> None:
    """Reads never wait, and writes only during the attempts."""
    other = NamespaceState("d.d", "me")
    sections = [ExclusiveSection(each, REASON) for each in (state, other)]

    async def enter() -> None:
        with pytest.raises(CommandError, match="1 writes are running") as caught:
            await enter_together(sections)
        assert caught.value.code == ErrorCode.LockBusy

    async def main() -> None:
        other.enter(is_write=True)
        running = other.operations
        async with trio.open_nursery() as nursery:
            nursery.start_soon(enter)
            admitted = 0
            for _ in range(600):
                await trio.sleep(1)
                for each in (state, other):
                    section = each.critical_section
                    assert section is None or not section.blocks_reads
                    admitted += section is None
        assert admitted > 1000
        assert (state.critical_section, other.critical_section) == (None, None)
        other.exit(running, is_write=True)
        await enter_together(sections)
        assert all(each.is_complete for each in sections)

    run(main)


def test_the_error_names_another_section(state: NamespaceState) -> None:
    async def main() -> None:
        await state.enter_section({"command": "other"})
        with pytest.raises(CommandError, match="another operation's section is in effect"):
            await enter_together([ExclusiveSection(state, REASON)])

    run(main)


def test_open_transactions_are_not_blamed_for_another_section(state: NamespaceState) -> None:
    async def main() -> None:
        await state.enter_section({"command": "other"})
        state.enter_transaction()
        driver = SectionDriver(state, REASON, MOVE, [writers_of(state)])
        for _ in range(20):
            assert not await driver.try_block_writes()

    run(main)


def test_a_cancelled_task_does_not_enter_a_section_that_becomes_free(state: NamespaceState) -> None:
    """As at a step-down, which ends all sections."""

    async def main() -> None:
        await state.enter_section({"command": "other"})
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(state.enter_section, REASON)
                await trio.testing.wait_all_tasks_blocked()
                state.release()
                scope.cancel()
        assert state.critical_section is None

    run(main)


def test_a_cancelled_task_leaves_no_section_behind(state: NamespaceState) -> None:
    async def main() -> None:
        state.enter(is_write=True)
        with trio.move_on_after(0.2):
            async with held_exclusively(ExclusiveSection(state, REASON)):
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


# Moves


def section_for_move(state: NamespaceState, *drains: Drain) -> SectionDriver[NamespaceState]:
    return SectionDriver(state, REASON, MOVE, [writers_of(state), *drains])


async def test_a_move_admits_writes_again_if_the_running_ones_do_not_end(
    state: NamespaceState, autojump_clock: MockClock
) -> None:
    state.enter(is_write=True)
    section = section_for_move(state)
    for _ in range(10):
        began = trio.current_time()
        assert not await section.try_block_writes()
        assert trio.current_time() - began == pytest.approx(MOVE.attempt)
        assert state.critical_section is None
    state.exit(state.operations, is_write=True)
    assert await section.try_block_writes()
    entered = section.section
    assert entered is not None
    assert entered is state.critical_section
    assert not entered.blocks_reads


async def test_the_duration_includes_attempts_after_which_writes_were_admitted_again(
    state: NamespaceState, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("time.monotonic", trio.current_time)
    state.enter(is_write=True)
    section = section_for_move(state)
    for attempts in range(1, 4):
        assert not await section.try_block_writes()
        assert section.seconds == pytest.approx(attempts * MOVE.attempt)
        await trio.sleep(1)
    state.exit(state.operations, is_write=True)
    assert await section.try_block_writes()
    await trio.sleep(2)
    section.leave()
    assert section.seconds == pytest.approx(3 * MOVE.attempt + 2)


async def test_a_move_fails_after_several_attempts_delayed_by_transactions(
    state: NamespaceState, autojump_clock: MockClock
) -> None:
    state.enter_transaction()
    section = section_for_move(state)
    for _ in range(4):
        assert not await section.try_block_writes()
    with pytest.raises(CommandError) as caught:
        await section.try_block_writes()
    assert caught.value.code == ErrorCode.LockTimeout
    assert caught.value.message == (
        "Failed to acquire the critical section of d.c within 500 milliseconds because of open transactions"
    )
    assert state.critical_section is None


@pytest.mark.parametrize("has_transactions", [False, True])
async def test_only_operations_still_running_delay_an_attempt(
    state: NamespaceState, autojump_clock: MockClock, has_transactions: bool
) -> None:
    """The writes have ended, but not the second drain."""
    section = section_for_move(state, Drain(trio.sleep_forever, lambda: has_transactions))
    for _ in range(4):
        assert not await section.try_block_writes()
    if has_transactions:
        with pytest.raises(CommandError):
            await section.try_block_writes()
    else:
        assert not await section.try_block_writes()


async def test_waiting_for_another_section_does_not_count_as_a_delay(
    state: NamespaceState, autojump_clock: MockClock
) -> None:
    await state.enter_section({"command": "other"})
    section = section_for_move(state, Drain(trio.sleep_forever, lambda: True))
    for _ in range(10):
        assert not await section.try_block_writes()
    assert state.critical_section is not None
    assert state.critical_section.reason == {"command": "other"}


async def test_an_error_of_a_drain_leaves_no_section_behind(state: NamespaceState) -> None:
    async def fail() -> None:
        raise CommandError(ErrorCode.HostUnreachable, "no commit can be seen")

    with pytest.raises(CommandError, match="no commit can be seen"):
        await section_for_move(state, Drain(fail, lambda: True)).try_block_writes()
    assert state.critical_section is None


async def test_the_next_driver_of_a_section_measures_and_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As after a failover: the section is restored at the beginning of the term, and the move continues it."""
    now = 1000.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    state = DatabaseState("d")
    forgotten: list[bool] = []

    def forget() -> None:
        forgotten.append(state.critical_section is not None)

    first, second = (SectionDriver(state, REASON, forget=forget) for _ in range(2))
    await first.restore()
    await second.restore()
    section = state.critical_section
    assert section is not None
    assert section.blocks_reads
    now += 2
    second.leave()
    assert second.seconds == 2
    assert state.critical_section is None
    await section.wait_released()
    assert forgotten == [True]
    first.leave()
    assert forgotten == [True]


@pytest.mark.parametrize("reason", [REASON, {"command": "other"}])
async def test_another_section_in_the_way_of_a_restored_one_is_logged(
    state: NamespaceState, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture, reason: dict[str, str]
) -> None:
    await state.enter_section(reason)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(SectionDriver(state, REASON).restore)
        await trio.sleep(1)
        state.release()
    logged = [(record.levelname, vars(record)["fields"]) for record in caplog.records]
    names = {"namespace": "d.c", "in_effect": "{'command': 'other'}", "to_be_restored": "{'command': 'test'}"}
    assert logged == ([] if reason == REASON else [("ERROR", names)])


async def test_a_section_is_left_only_by_its_reason(state: NamespaceState) -> None:
    other = SectionDriver(state, {"command": "other"})
    await SectionDriver(state, REASON).restore()
    other.leave()
    assert state.critical_section is not None
    assert other.section is None
    assert other.held_writes == 0


async def test_a_closed_database_is_forgotten_even_after_an_error() -> None:
    state = DatabaseState("d")
    forgotten: list[str] = []
    section = SectionDriver(state, REASON, forget=lambda: forgotten.append("d"))

    async def fail() -> None:
        async with section.closed():
            assert section.section is not None
            assert section.section.blocks_reads
            raise CommandError(ErrorCode.NamespaceNotFound, "gone")

    with pytest.raises(CommandError, match="gone"):
        await fail()
    assert forgotten == ["d"]
    assert state.critical_section is None
