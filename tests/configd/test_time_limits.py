"""The time limits of commands of coordinators: they end the wait for locks, and interrupt no writes."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import pytest
import trio
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.in_process import InProcess, in_process
from tests.configd.test_crashes import add_zones, drop, outcome, refine
from tests.shardd.mini_cluster import Set

CHUNKS = [(MinKey(), 0, "a"), (0, MaxKey(), "b")]
LIMIT_MS = 100
WRITES = ("insert", "update", "delete", "applyOps")

Command = Callable[[CatalogUser, Sharded], Mapping[str, Any]]


def create(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    catalog.run(drop(catalog, sharded))
    return catalog.create_command(sharded, CHUNKS)


def rename(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    add_zones(catalog, sharded.namespace, "one", "two")
    command = {"_configsvrRenameCollectionMetadata": sharded.namespace, "to": f"{sharded.namespace}_renamed"}
    return {**command, "optFromCollection": {"uuid": sharded.uuid}}


def slow_down(server: InProcess) -> None:
    """Make every write take longer than the time limit."""
    run = server.mongod.command

    async def slow(db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if next(iter(command)) in WRITES:
            await trio.sleep(1.5 * LIMIT_MS / 1000)
        return await run(db, command)

    server.mongod.command = slow  # type: ignore[method-assign]


def run_in_process(config_set: Set, body: Callable[[InProcess], Awaitable[None]]) -> None:
    async def main() -> None:
        async with in_process(config_set) as server:
            await body(server)

    trio.run(main)


@pytest.mark.parametrize("make_command", [create, drop, rename, refine])
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
