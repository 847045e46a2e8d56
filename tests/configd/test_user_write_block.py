"""``_configsvrSetUserWriteBlockMode``: the phases on all shards and on the config servers."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import FakeShard, fake_shards
from tests.integration.waiting import eventually

COMMAND: Final = "_shardsvrSetUserWriteBlockMode"
BLOCKED: Final = {"_id": "", "blockNewUserShardedDDL": True, "blockUserWrites": True}


@pytest.fixture
def commands(catalog: CatalogUser, shards: dict[str, FakeShard]) -> Iterator[list[list[dict[str, Any]]]]:
    """Commands received by each shard. At the end, writes are allowed again."""
    for shard in shards.values():
        shard.commands.clear()
    yield [shard.commands for shard in shards.values()]
    for shard in shards.values():
        shard.failures.pop(COMMAND, None)
        shard.held.pop(COMMAND, None)
    set_mode(catalog, block=False)


def set_mode(catalog: CatalogUser, *, block: bool) -> None:
    catalog.run({"_configsvrSetUserWriteBlockMode": 1, "global": block})


def steps(commands: list[dict[str, Any]]) -> list[tuple[bool, str]]:
    return [(each["global"], each["phase"]) for each in commands if COMMAND in each]


def test_the_phases_are_carried_out_everywhere(catalog: CatalogUser, commands: list[list[dict[str, Any]]]) -> None:
    set_mode(catalog, block=True)
    assert list(catalog.config.user_writes_critical_sections.find()) == [BLOCKED]
    set_mode(catalog, block=False)
    assert list(catalog.config.user_writes_critical_sections.find()) == []
    assert catalog.config.sharding_configsvr_coordinators.count_documents({}) == 0
    for sent in commands:
        assert steps(sent) == [(True, "prepare"), (True, "complete"), (False, "prepare"), (False, "complete")]
        numbers = [each["txnNumber"] for each in sent if COMMAND in each]
        assert numbers[0] < numbers[1]


def test_arguments(catalog: CatalogUser) -> None:
    name = "_configsvrSetUserWriteBlockMode"
    for arguments, code in (({}, 40414), ({"global": 1}, ErrorCode.TypeMismatch)):
        with pytest.raises(OperationFailure) as failure:
            catalog.run({name: 1, **arguments})
        assert failure.value.code == code
    with pytest.raises(OperationFailure) as failure:
        catalog.config.client.admin.command({"setUserWriteBlockMode": 1, "global": True})
    assert failure.value.code == ErrorCode.IllegalOperation


def test_equal_requests_join_and_others_conflict(
    catalog: CatalogUser, shards: dict[str, FakeShard], commands: list[list[dict[str, Any]]]
) -> None:
    first = next(iter(shards.values()))
    released = first.held[COMMAND] = Event()
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(set_mode, catalog, block=True) for _ in range(2)]
        try:
            eventually(lambda: steps(commands[0]))
            [document] = catalog.config.sharding_configsvr_coordinators.find()
            assert document["_id"] == {"coordinatorType": "setUserWriteBlockMode"}
            assert (document["block"], document["phase"]) == (True, "prepare")
            with pytest.raises(OperationFailure) as conflict:
                set_mode(catalog, block=False)
            assert conflict.value.code == ErrorCode.ConflictingOperationInProgress
        finally:
            released.set()
        for each in waiting:
            each.result(30)
    assert steps(commands[0])[0] == (True, "prepare")


def test_a_phase_is_repeated_until_every_shard_has_carried_it_out(
    catalog: CatalogUser, shards: dict[str, FakeShard], commands: list[list[dict[str, Any]]]
) -> None:
    first = next(iter(shards.values()))
    first.failures[COMMAND] = CommandError(ErrorCode.WriteConcernFailed, "waiting for replication timed out")
    with ThreadPoolExecutor(1) as pool:
        blocking = pool.submit(set_mode, catalog, block=True)
        eventually(lambda: len(steps(commands[0])) > 2)
        assert (True, "complete") not in steps(commands[1])
        del first.failures[COMMAND]
        blocking.result(30)
    assert steps(commands[0])[-1] == (True, "complete")


def test_a_database_moves_while_a_shard_lets_a_phase_wait(
    catalog: CatalogUser, shards: dict[str, FakeShard], commands: list[list[dict[str, Any]]]
) -> None:
    catalog.run({"_configsvrCreateDatabase": "moving", "primaryShardId": "a"})
    released = shards["a"].held[COMMAND] = Event()
    with ThreadPoolExecutor(1) as pool:
        blocking = pool.submit(set_mode, catalog, block=True)
        try:
            eventually(lambda: steps(commands[0]))
            catalog.move_database("moving", to="b")
        finally:
            released.set()
        blocking.result(30)


@pytest.mark.usefixtures("commands")
def test_a_shard_that_is_added_takes_the_mode_over(catalog: CatalogUser) -> None:
    with fake_shards("late_one", "late_two") as fakes:
        late, later = fakes.values()
        catalog.run({"_configsvrAddShard": late.connection_string})
        assert steps(late.commands) == [(False, "prepare"), (False, "complete")]
        set_mode(catalog, block=True)
        catalog.run({"_configsvrAddShard": later.connection_string})
        expected = [(False, "prepare"), (False, "complete"), (True, "prepare"), (True, "complete")]
        assert steps(later.commands) == expected
        set_mode(catalog, block=False)
        catalog.config.shards.delete_many({"_id": {"$in": ["late_one", "late_two"]}})
