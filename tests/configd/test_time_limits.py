"""The time limits of commands that change the catalog: they end the wait for locks, and interrupt no writes."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import uuid4

import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64

from shardwright.configd.catalog.chunks import RENAMED_FROM
from shardwright.configd.commands.cluster_settings import COORDINATORS
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import fake_shards
from tests.configd.in_process import WRITES, InProcess, in_process
from tests.configd.test_crashes import CHUNKS, add_zones, drop, merge, outcome, refine, split, zones
from tests.shardd.mini_cluster import Set

LIMIT_MS = 100

SHARD_LIMIT_MS = 3_000
"""Time limit of commands that send requests to shards first."""

Command = Callable[[CatalogUser, Sharded], Mapping[str, Any]]


def create(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    catalog.run(drop(catalog, sharded))
    return catalog.create_command(sharded, CHUNKS)


def rename(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    add_zones(catalog, sharded.namespace, "one", "two")
    command = {"_configsvrRenameCollectionMetadata": sharded.namespace, "to": f"{sharded.namespace}_renamed"}
    return {**command, "optFromCollection": {"uuid": sharded.uuid}}


def define_zone(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    """The command also completes a rename whose zones have not followed yet."""
    former = f"{sharded.namespace}_former"
    catalog.run({"_configsvrAddShardToZone": "a", "zone": "limited"})
    add_zones(catalog, former, "one", "two")
    mark = {RENAMED_FROM: former, "allowMigrations": False}
    catalog.config.collections.update_one({"_id": sharded.namespace}, {"$set": mark})
    return {"_configsvrUpdateZoneKeyRange": sharded.namespace, "min": {"x": 5}, "max": {"x": 6}, "zone": "limited"}


def slow_down(server: InProcess, limit_ms: int = LIMIT_MS) -> None:
    """Delay the reply to every write beyond the time limit."""
    run = server.mongod.command

    async def slow(db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        reply = await run(db, command)
        if next(iter(command)) in WRITES:
            await trio.sleep(1.5 * limit_ms / 1000)
        return reply

    server.mongod.command = slow  # type: ignore[method-assign]


def run_in_process(config_set: Set, body: Callable[[InProcess], Awaitable[None]]) -> None:
    async def main() -> None:
        async with in_process(config_set) as server:
            await body(server)

    trio.run(main)


def whats(catalog: CatalogUser, namespace: str) -> list[str]:
    """The kinds of the changes in the changelog."""
    return [each["what"] for each in catalog.changes(namespace)]


@pytest.mark.parametrize("make_command", [create, drop, rename, refine, split, merge, define_zone])
def test_a_time_limit_does_not_interrupt_the_writes(
    catalog: CatalogUser, config_set: Set, make_command: Command
) -> None:
    name = make_command.__name__
    expected, limited = (catalog.shard_collection(f"limits.{name}{number}", CHUNKS) for number in range(2))

    async def body(server: InProcess) -> None:
        await server.run(make_command(catalog, expected))
        slow_down(server)
        assert await server.run({**make_command(catalog, limited), "maxTimeMS": LIMIT_MS})

    run_in_process(config_set, body)
    assert outcome(catalog, limited) == outcome(catalog, expected)
    assert whats(catalog, limited.namespace) == whats(catalog, expected.namespace)
    assert zones(catalog, f"{limited.namespace}_former") == []


def test_a_time_limit_does_not_separate_a_removal_of_zones_from_its_record(
    catalog: CatalogUser, config_set: Set
) -> None:
    """Without the record, a late repetition would remove zones that have been added since."""
    namespace = "limits.zoned"
    session = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1)}
    command = {"_configsvrRemoveTags": namespace, **session}
    add_zones(catalog, namespace, "one", "two")

    async def body(server: InProcess) -> None:
        slow_down(server)
        assert await server.run({**command, "maxTimeMS": LIMIT_MS})
        assert zones(catalog, namespace) == []
        add_zones(catalog, namespace, "later")
        await server.run(command)

    run_in_process(config_set, body)
    assert [tag for _, _, tag in zones(catalog, namespace)] == ["later"]
    catalog.config.tags.delete_many({"ns": namespace})


@pytest.mark.parametrize("mode", ["Stop", "Start"])
def test_a_time_limit_does_not_keep_a_switch_of_the_balancer_from_the_log(
    catalog: CatalogUser, config_set: Set, mode: str
) -> None:
    logged = {"what": f"balancer.{mode.lower()}"}
    before = catalog.config.actionlog.count_documents(logged)

    async def body(server: InProcess) -> None:
        slow_down(server)
        assert await server.run_bare({f"_configsvrBalancer{mode}": 1, "maxTimeMS": LIMIT_MS})

    run_in_process(config_set, body)
    assert catalog.config.actionlog.count_documents(logged) == before + 1


def test_a_time_limit_does_not_keep_a_new_database_from_the_log(catalog: CatalogUser, config_set: Set) -> None:
    async def body(server: InProcess) -> None:
        slow_down(server)
        with pytest.raises(CommandError) as failure:
            await server.run({"_configsvrCreateDatabase": "limited", "primaryShardId": "a", "maxTimeMS": LIMIT_MS})
        assert failure.value.code == ErrorCode.MaxTimeMSExpired  # while the primary shard loads the metadata

    run_in_process(config_set, body)
    assert catalog.config.databases.find_one({"_id": "limited"}) is not None
    assert whats(catalog, "limited") == ["createDatabase"]


def test_a_time_limit_does_not_interrupt_changes_of_the_list_of_shards(catalog: CatalogUser, config_set: Set) -> None:
    limit = {"maxTimeMS": SHARD_LIMIT_MS}

    def logged() -> list[str]:
        changes = catalog.config.changelog.find({"$or": [{"details.name": "limited"}, {"details.shard": "limited"}]})
        return [each["what"] for each in changes]

    async def body(server: InProcess) -> None:
        slow_down(server, SHARD_LIMIT_MS)
        await server.run({"_configsvrAddShard": fakes["limited"].connection_string, **limit})
        assert logged() == ["addShard"]
        assert [each.set_name for each in server.term.shards.monitors()] == ["limited"]
        for state in ("started", "completed"):
            assert (await server.run({"_configsvrRemoveShard": "limited", **limit}))["state"] == state
        assert logged() == ["addShard", "removeShard.start", "removeShard"]
        assert "limited" not in [each.set_name for each in server.term.shards.monitors()]

    with fake_shards("limited") as fakes:
        run_in_process(config_set, body)


def test_a_time_limit_does_not_keep_a_persisted_change_of_the_write_block_from_running(
    catalog: CatalogUser, config_set: Set
) -> None:
    """Otherwise it would continue only in the next term, and until then a change to the other mode is refused."""

    async def body(server: InProcess) -> None:
        slow_down(server)
        with pytest.raises(CommandError) as failure:
            await server.run({"_configsvrSetUserWriteBlockMode": 1, "global": False, "maxTimeMS": LIMIT_MS})
        assert failure.value.code == ErrorCode.MaxTimeMSExpired
        with trio.fail_after(30):
            while True:
                if catalog.config[COORDINATORS].find_one() is None:
                    break
                await trio.sleep(0.1)

    run_in_process(config_set, body)


def test_a_time_limit_ends_the_wait_for_a_lock(catalog: CatalogUser, config_set: Set) -> None:
    sharded = catalog.shard_collection("limits.locked", CHUNKS)

    async def body(server: InProcess) -> None:
        async def hold(task_status: trio.TaskStatus[None]) -> None:
            async with server.term.locks.hold(f"ns:{sharded.namespace}"):
                task_status.started()
                await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            await nursery.start(hold)
            with pytest.raises(CommandError) as failure:
                await server.run({**drop(catalog, sharded), "maxTimeMS": LIMIT_MS})
            nursery.cancel_scope.cancel()
        assert failure.value.code == ErrorCode.MaxTimeMSExpired

    run_in_process(config_set, body)
    assert catalog.config.collections.find_one({"_id": sharded.namespace}) is not None
