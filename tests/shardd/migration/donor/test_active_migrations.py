"""One migration at a time."""

import pytest
import trio
from trio.testing import MockClock

from shardwright.shardd.migration.active_migrations import ActiveMigrations, DonorMigrationKey
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document

KEY = DonorMigrationKey("db.c", encode_document({"a": 0}), encode_document({"a": 10}), "sh1")
OTHER = DonorMigrationKey("db.c", encode_document({"a": 10}), encode_document({"a": 20}), "sh1")


def test_the_same_migration_is_joined() -> None:
    migrations = ActiveMigrations()
    assert migrations.join_donor_migration(KEY) is None
    active = migrations.begin_donor_migration(KEY)
    assert migrations.join_donor_migration(KEY) is active
    migrations.end_donor_migration()
    assert migrations.join_donor_migration(KEY) is None


def test_another_migration_is_refused() -> None:
    migrations = ActiveMigrations()
    migrations.begin_donor_migration(KEY)
    with pytest.raises(CommandError) as conflict:
        migrations.join_donor_migration(OTHER)
    assert conflict.value.code == ErrorCode.ConflictingOperationInProgress
    assert "currently donating chunk [{ a: 0 }, { a: 10 }) for namespace db.c to sh1" in conflict.value.message


def test_a_recipient_cannot_be_a_donor_nor_a_donor_a_recipient() -> None:
    migrations = ActiveMigrations()
    with migrations.receiving("db.c", "[a, b)", "sh2"), pytest.raises(CommandError) as conflict:
        migrations.begin_donor_migration(KEY)
    assert "currently receiving chunk [a, b) for namespace db.c from sh2" in conflict.value.message
    migrations.begin_donor_migration(KEY)
    with pytest.raises(CommandError), migrations.receiving("db.c", "[a, b)", "sh2"):
        pass


def test_waiters_get_the_result_of_the_migration() -> None:
    migrations = ActiveMigrations()
    active = migrations.begin_donor_migration(KEY)
    migrations.end_donor_migration(CommandError(ErrorCode.ChunkTooBig, "too big"))
    with pytest.raises(CommandError) as failure:
        trio.run(active.wait_result)
    assert failure.value.code == ErrorCode.ChunkTooBig


async def test_an_abort_cancels_an_abortable_block(autojump_clock: MockClock) -> None:
    active = ActiveMigrations().begin_donor_migration(KEY)
    first = CommandError(ErrorCode.Interrupted, "first")

    async def abort() -> None:
        await trio.sleep(1)
        active.abort(first)
        active.abort(CommandError(ErrorCode.Interrupted, "second"))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(abort)
        with pytest.raises(CommandError) as failure, active.abortable():
            await trio.sleep_forever()
    assert failure.value is first


def test_an_abort_that_came_early_is_not_lost() -> None:
    active = ActiveMigrations().begin_donor_migration(KEY)
    active.abort(CommandError(ErrorCode.Interrupted, "early"))

    async def wait() -> None:
        with pytest.raises(CommandError), active.abortable():
            await trio.sleep_forever()

    trio.run(wait)
    told: list[CommandError] = []
    active.set_on_abort(told.append)
    assert [error.message for error in told] == ["early"]
