"""Writes to ``config.locks`` and ``config.lockpings``, and the operations that wait for them."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio
import trio.testing
from bson.objectid import ObjectId

from shardwright.daemon.shown_locks import PING_SECONDS, RELEASE_SECONDS_MAX, ShownLocks
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError

WHO = "ShardingDDLCoordinator"


class FakeConfigServers:
    """Records writes, and fails or does not answer on demand."""

    def __init__(self) -> None:
        self.locks: list[list[tuple[str, int]]] = []
        self.pings: list[str] = []
        self.failures = 0
        self.is_silent = False

    async def write(self, collection: str, statements: Sequence[Mapping[str, Any]]) -> None:
        """Execute the statements of an update, which must not be empty."""
        await trio.lowlevel.checkpoint()
        if not statements:
            raise CommandError(ErrorCode.InvalidLength, "Write batch sizes must be between 1 and 100000.")
        if self.is_silent:
            await trio.sleep_forever()
        if self.failures:
            self.failures -= 1
            raise BackendError("config", "is away", sent=False)
        if collection == "lockpings":
            self.pings += [each["q"]["_id"] for each in statements]
        else:
            self.locks.append([_change(each) for each in statements])


def _change(statement: Mapping[str, Any]) -> tuple[str, int]:
    if "process" in statement["q"]:
        return f"all of {statement['q']['process']}", 0
    update = statement["u"]
    fields = update["$set"] if isinstance(update, dict) else update[0]["$replaceWith"]["$cond"][2]["$literal"]
    assert fields["process"] == "shard0"
    assert fields["who"] == f"shard0:{WHO}"
    assert fields["ts"] == ObjectId("070000000000000000000000")
    return statement["q"]["_id"], fields["state"]


def during_a_term(work: Callable[[ShownLocks, FakeConfigServers], Awaitable[None]]) -> FakeConfigServers:
    """Run the work in a term; waits take no time."""
    servers = FakeConfigServers()

    async def main() -> None:
        locks = ShownLocks(servers.write)
        locks.begin("shard0", 7)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(locks.run)
            await work(locks, servers)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    return servers


def test_a_lock_is_shown_while_it_is_held_and_afterwards() -> None:
    async def work(locks: ShownLocks, _: FakeConfigServers) -> None:
        async with locks.shown(["db", "db.c"], WHO, "dropCollection"):
            await trio.sleep(1)

    held = [[("db", 2), ("db.c", 2)], [("db.c", 0), ("db", 0)]]
    assert during_a_term(work).locks == [[("all of shard0", 0)], *held]


def test_what_is_over_at_once_is_written_once() -> None:
    async def work(locks: ShownLocks, _: FakeConfigServers) -> None:
        await trio.sleep(1)
        async with locks.shown(["db"], WHO, "dropDatabase"):
            pass

    assert during_a_term(work).locks[1:] == [[("db", 0)]]


def test_a_lock_that_two_hold_is_released_by_the_last() -> None:
    async def work(locks: ShownLocks, _: FakeConfigServers) -> None:
        async with locks.shown(["db.c"], WHO, "move"):
            async with locks.shown(["db.c"], WHO, "move"):
                await trio.sleep(1)
            await trio.sleep(1)

    assert during_a_term(work).locks[1:] == [[("db.c", 2)], [("db.c", 0)]]


def test_writes_are_repeated() -> None:
    async def work(locks: ShownLocks, servers: FakeConfigServers) -> None:
        await trio.sleep(1)
        servers.failures = 3
        async with locks.shown(["db"], WHO, "dropDatabase"):
            await trio.sleep(60)

    assert during_a_term(work).locks[1:] == [[("db", 2)], [("db", 0)]]


def test_nothing_waits_for_config_servers_that_do_not_answer() -> None:
    async def work(locks: ShownLocks, servers: FakeConfigServers) -> None:
        servers.is_silent = True
        begun = trio.current_time()
        async with locks.shown(["db"], WHO, "dropDatabase"):
            assert trio.current_time() == begun
        assert trio.current_time() - begun <= RELEASE_SECONDS_MAX

    assert during_a_term(work).locks == []


def test_what_a_term_has_not_written_does_not_occupy_the_next_one() -> None:
    servers = FakeConfigServers()

    async def main() -> None:
        locks = ShownLocks(servers.write)
        locks.begin("shard0", 6)
        async with locks.shown(["db"], WHO, "dropDatabase"):
            pass  # nothing runs that would write it
        locks.begin("shard0", 7)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(locks.run)
            await trio.sleep(1)
            async with locks.shown(["db.c"], WHO, "collMod"):
                await trio.sleep(1)
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    assert servers.locks == [[("all of shard0", 0)], [("db.c", 2)], [("db.c", 0)]]


def test_a_process_says_that_it_is_alive() -> None:
    async def work(_: ShownLocks, servers: FakeConfigServers) -> None:
        await trio.sleep(3.5 * PING_SECONDS)

    assert during_a_term(work).pings == ["shard0"] * 4
