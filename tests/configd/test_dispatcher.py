"""Rules that all commands of the config server share, and commands that pass through to mongod."""

import re
from typing import Any

import pytest
import trio
import trio.testing
from bson.int64 import Int64
from bson.timestamp import Timestamp
from pymongo.errors import ExecutionTimeout, OperationFailure

from shardwright.configd.commands.config_commands import CONFIG_COMMANDS
from shardwright.configd.commands.operation import WriteConcernRule
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser
from tests.configd.fake_shard import FakeShard
from tests.configd.in_process import in_process
from tests.shardd.mini_cluster import Set

NEED_MAJORITY, REFUSE_ANY = (
    sorted(each.name for each in CONFIG_COMMANDS if each.write_concern is rule)
    for rule in (WriteConcernRule.MAJORITY, WriteConcernRule.UNSUPPORTED)
)


@pytest.mark.parametrize("name", NEED_MAJORITY)
@pytest.mark.parametrize("write_concern", [None, {"w": 1}])
def test_majority_write_concern_is_required(
    catalog: CatalogUser, name: str, write_concern: dict[str, Any] | None
) -> None:
    with pytest.raises(OperationFailure, match=f'"{name}" must be called with majority writeConcern') as failure:
        catalog.run({name: "x"}, write_concern=write_concern)
    assert failure.value.code == ErrorCode.InvalidOptions


@pytest.mark.parametrize("name", REFUSE_ANY)
def test_write_concern_is_refused(catalog: CatalogUser, name: str) -> None:
    with pytest.raises(OperationFailure, match="Command does not support writeConcern") as failure:
        catalog.run({name: 1})
    assert failure.value.code == ErrorCode.InvalidOptions


def test_commands_are_for_the_admin_database(catalog: CatalogUser) -> None:
    with pytest.raises(OperationFailure, match="may only be run against the admin database") as failure:
        catalog.client.test.command({"_configsvrBalancerStatus": 1})
    assert failure.value.code == ErrorCode.Unauthorized


def test_unknown_commands_are_for_mongod_to_refuse(catalog: CatalogUser) -> None:
    with pytest.raises(OperationFailure, match=re.escape("no such command: '_configsvrNope'")) as failure:
        catalog.run({"_configsvrNope": 1})
    assert failure.value.code == ErrorCode.CommandNotFound


def test_max_time_limits_a_command(catalog: CatalogUser, shards: dict[str, FakeShard]) -> None:
    """No primary is found within the time limit if only a wrong address of a set is known."""
    with pytest.raises(ExecutionTimeout) as failure:
        catalog.run({"_configsvrAddShard": "nobody/127.0.0.1:1", "maxTimeMS": 50})
    assert failure.value.code == ErrorCode.MaxTimeMSExpired


def test_balancer_switch(catalog: CatalogUser) -> None:
    def run(name: str) -> dict[str, Any]:
        return catalog.run({name: 1}, write_concern=None)

    catalog.config.settings.delete_many({})
    assert run("_configsvrBalancerStatus")["mode"] == "full"
    assert run("_configsvrBalancerStop") == {"ok": 1.0}
    status = run("_configsvrBalancerStatus")
    assert list(status) == ["mode", "inBalancerRound", "numBalancerRounds", "term", "ok"]
    assert (status["mode"], status["inBalancerRound"]) == ("off", False)
    settings = list(catalog.config.settings.find({"_id": {"$in": ["balancer", "autosplit"]}}).sort("_id"))
    assert settings == [
        {"_id": "autosplit", "enabled": False},
        {"_id": "balancer", "mode": "off", "stopped": True},
    ]
    catalog.config.settings.update_one(
        {"_id": "balancer"}, {"$set": {"activeWindow": {"start": "1:00", "stop": "2:00"}}}
    )
    run("_configsvrBalancerStart")
    balancer = catalog.config.settings.find_one({"_id": "balancer"})
    assert balancer is not None
    assert (balancer["mode"], balancer["stopped"]) == ("full", False)
    assert balancer["activeWindow"] == {"start": "1:00", "stop": "2:00"}
    actions = [action["what"] for action in catalog.config.actionlog.find()]
    assert [action for action in actions if action != "balancer.round"][-2:] == ["balancer.stop", "balancer.start"]
    run("_configsvrBalancerStop")


def test_plain_commands_pass_through(catalog: CatalogUser) -> None:
    catalog.config.settings.replace_one({"_id": "chunksize"}, {"value": 64}, upsert=True)
    assert catalog.config.settings.find_one({"_id": "chunksize"}) == {"_id": "chunksize", "value": 64}
    catalog.config.settings.delete_one({"_id": "chunksize"})
    catalog.client.anything.collection.insert_one({"_id": 1})
    assert list(catalog.client.anything.collection.aggregate([{"$count": "n"}])) == [{"n": 1}]


def test_the_catalog_is_not_dropped(catalog: CatalogUser) -> None:
    with pytest.raises(OperationFailure, match="Cannot drop 'config' database") as refused:
        catalog.client.drop_database("config")
    assert refused.value.code == ErrorCode.IllegalOperation
    assert catalog.config.version.find_one() is not None


def test_reads_do_not_wait_for_another_shards_time(catalog: CatalogUser) -> None:
    """A time that another shard has reached is reached by a no-op, not by the next write of some client."""
    now = catalog.now()
    later = Timestamp(now.time + 2, 1)
    read = {
        "find": "version",
        "readConcern": {"level": "majority", "afterClusterTime": later},
        "maxTimeMS": 1000,
    }
    with catalog.client.start_session() as session:
        session.advance_cluster_time({"clusterTime": later, "signature": {"hash": bytes(20), "keyId": Int64(0)}})
        reply = catalog.client.config.command(read, session=session)
    assert len(reply["cursor"]["firstBatch"]) == 1


async def test_running_commands_are_interrupted_when_the_term_ends(
    config_set: Set, shards: dict[str, FakeShard]
) -> None:
    async with in_process(config_set) as server:
        codes: list[int] = []

        async def wait_forever() -> None:
            with pytest.raises(CommandError) as failure:
                await server.run({"_configsvrAddShard": "nobody/127.0.0.1:1"})
            codes.append(failure.value.code)

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(wait_forever)
                nursery.start_soon(wait_forever)
                await trio.testing.wait_all_tasks_blocked(0.01)
                server.term.end()
            await wait_forever()
        assert codes == [ErrorCode.InterruptedDueToReplStateChange] * 3
