"""One migration at a time."""

import pytest
import trio
from trio.testing import MockClock

from shardwright.shardd.migration.registry import DonationKey, MigrationRegistry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

KEY = DonationKey("db.c", encode_document({"a": 0}), encode_document({"a": 10}), "sh1")
OTHER = DonationKey("db.c", encode_document({"a": 10}), encode_document({"a": 20}), "sh1")


def test_the_same_donation_is_joined() -> None:
    registry = MigrationRegistry()
    assert registry.join_donation(KEY) is None
    donation = registry.begin_donation(KEY)
    assert registry.join_donation(KEY) is donation
    registry.end_donation()
    assert registry.join_donation(KEY) is None


def test_another_donation_has_to_wait_for_its_turn() -> None:
    registry = MigrationRegistry()
    registry.begin_donation(KEY)
    with pytest.raises(CommandError) as conflict:
        registry.join_donation(OTHER)
    assert conflict.value.code == ErrorCode.ConflictingOperationInProgress
    assert "currently donating chunk [{ a: 0 }, { a: 10 }) for namespace db.c to sh1" in conflict.value.message


def test_a_recipient_gives_nothing_and_a_donor_receives_nothing() -> None:
    registry = MigrationRegistry()
    with registry.receiving("db.c", "[a, b)", "sh2"), pytest.raises(CommandError) as conflict:
        registry.begin_donation(KEY)
    assert "currently receiving chunk [a, b) for namespace db.c from sh2" in conflict.value.message
    registry.begin_donation(KEY)
    with pytest.raises(CommandError), registry.receiving("db.c", "[a, b)", "sh2"):
        pass


def test_the_result_is_that_of_the_donation() -> None:
    registry = MigrationRegistry()
    donation = registry.begin_donation(KEY)
    registry.end_donation(CommandError(ErrorCode.ChunkTooBig, "too big"))
    with pytest.raises(CommandError) as failure:
        trio.run(donation.wait_result)
    assert failure.value.code == ErrorCode.ChunkTooBig


def test_an_abort_ends_what_is_waited_for() -> None:
    donation = MigrationRegistry().begin_donation(KEY)
    first = CommandError(ErrorCode.Interrupted, "first")

    async def abort() -> None:
        await trio.sleep(1)
        donation.abort(first)
        donation.abort(CommandError(ErrorCode.Interrupted, "second"))

    async def wait() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(abort)
            with pytest.raises(CommandError) as failure, donation.abortable():
                await trio.sleep_forever()
        assert failure.value is first

    trio.run(wait, clock=MockClock(autojump_threshold=0))


def test_an_abort_that_came_early_is_not_lost() -> None:
    donation = MigrationRegistry().begin_donation(KEY)
    donation.abort(CommandError(ErrorCode.Interrupted, "early"))

    async def wait() -> None:
        with pytest.raises(CommandError), donation.abortable():
            await trio.sleep_forever()

    trio.run(wait)
    told: list[CommandError] = []
    donation.set_on_abort(told.append)
    assert [error.message for error in told] == ["early"]
