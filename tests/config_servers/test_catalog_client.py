"""Readings of the catalog: as new as the known config time, and in bounded time."""

from functools import partial
from typing import Any

import pytest
import trio
import trio.testing
from bson.timestamp import Timestamp

from shardwright.config_servers.catalog_client import PATIENCE_SECONDS
from shardwright.daemon.single_flight import SingleFlight
from shardwright.sharding.catalog.reads import read_routing, read_shards
from shardwright.sharding.clock import VectorClock
from shardwright.sharding.cluster_time import pack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.read_preference import PRIMARY, PRIMARY_PREFERRED
from tests.config_servers.fake_config_servers import READ_SECONDS_MAX, FakeConfigServers, client_of

TIME = Timestamp(7, 3)


def failure_of(servers: FakeConfigServers) -> CommandError:
    """Return the error of a reading."""
    with pytest.raises(CommandError) as caught:
        trio.run(
            client_of(servers, VectorClock()).read,
            read_shards(),
            clock=trio.testing.MockClock(autojump_threshold=0),
        )
    return caught.value


def test_each_read_is_no_older_than_the_one_before() -> None:
    servers = FakeConfigServers(TIME)
    catalog = client_of(servers, VectorClock())
    trio.run(catalog.read, read_shards())
    trio.run(catalog.read, read_shards())
    first, second = (command["readConcern"] for command in servers.commands)
    assert first == {"level": "majority"}
    assert second == {"level": "majority", "afterClusterTime": TIME}


def test_config_servers_that_do_not_come_up_to_the_time_are_too_slow() -> None:
    servers = FakeConfigServers(TIME)
    servers.failure = CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")
    assert failure_of(servers).code == ErrorCode.NetworkInterfaceExceededTimeLimit
    assert servers.commands[0]["maxTimeMS"] == READ_SECONDS_MAX * 1000


def test_config_servers_that_do_not_answer_are_too_slow() -> None:
    servers = FakeConfigServers(TIME)
    servers.is_silent = True
    assert failure_of(servers).code == ErrorCode.NetworkInterfaceExceededTimeLimit


def test_the_time_limit_of_a_routing_read_begins_again_with_each_batch() -> None:
    servers = FakeConfigServers(TIME)
    servers.batch_seconds = (READ_SECONDS_MAX - 1,) * 5
    clock = trio.testing.MockClock(autojump_threshold=0)
    assert trio.run(client_of(servers, VectorClock()).read, read_routing("db.c"), clock=clock) is None
    assert servers.commands[0]["maxTimeMS"] > sum(servers.batch_seconds) * 1000
    assert failure_of(servers).code == ErrorCode.NetworkInterfaceExceededTimeLimit


@pytest.mark.parametrize("seconds", [(1, READ_SECONDS_MAX + 1), (READ_SECONDS_MAX - 1,) * 200])
def test_a_routing_read_ends_after_a_slow_batch_or_ten_minutes(seconds: tuple[float, ...]) -> None:
    servers = FakeConfigServers(TIME)
    servers.batch_seconds = seconds
    clock = trio.testing.MockClock(autojump_threshold=0)
    with pytest.raises(CommandError) as caught:
        trio.run(client_of(servers, VectorClock()).read, read_routing("db.c"), clock=clock)
    assert caught.value.code == ErrorCode.NetworkInterfaceExceededTimeLimit


def test_config_servers_that_are_not_there_are_unreachable() -> None:
    servers = FakeConfigServers(TIME)
    servers.failure = BackendError("host:1", "closed the connection", sent=True)
    assert failure_of(servers).code == ErrorCode.HostUnreachable


def test_other_errors_are_the_readings() -> None:
    servers = FakeConfigServers(TIME)
    servers.failure = CommandError(ErrorCode.Unauthorized, "not authorized")
    assert failure_of(servers).code == ErrorCode.Unauthorized


@pytest.mark.parametrize("code", [ErrorCode.SnapshotTooOld, ErrorCode.SnapshotUnavailable])
def test_a_snapshot_that_is_gone_is_taken_again(code: ErrorCode) -> None:
    servers, clock = FakeConfigServers(TIME), trio.testing.MockClock()
    servers.failure = CommandError(code, "gone")

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client_of(servers, VectorClock()).read, read_shards())
            await trio.testing.wait_all_tasks_blocked()
            servers.failure = None
            clock.jump(1)

    trio.run(main, clock=clock)
    assert len(servers.commands) == 2


@pytest.mark.parametrize("sort", [None, {"min": 1}])
def test_finding_documents(sort: dict[str, int] | None) -> None:
    servers = FakeConfigServers(TIME)

    async def find() -> list[bytes]:
        return await client_of(servers, VectorClock()).find("tags", {"ns": "db.c"}, sort=sort)

    assert trio.run(find) == []
    expected: dict[str, Any] = {"find": "tags", "filter": {"ns": "db.c"}} | ({} if sort is None else {"sort": sort})
    expected |= {"readConcern": {"level": "majority"}, "maxTimeMS": READ_SECONDS_MAX * 1000}
    assert servers.commands == [expected]


def test_a_command_advances_the_clock() -> None:
    servers, clock = FakeConfigServers(TIME), VectorClock()

    async def run() -> None:
        assert (await client_of(servers, clock).command({"ping": 1}))["ok"]

    trio.run(run)
    assert clock.time.config_time == pack_timestamp(TIME)
    assert servers.commands == [{"ping": 1, "$db": "admin", "isIdempotent": True}]


def test_a_command_to_servers_that_are_not_there() -> None:
    servers = FakeConfigServers(TIME)
    servers.failure = BackendError("host:1", "closed the connection", sent=True)

    async def run() -> None:
        await client_of(servers, VectorClock()).command({"ping": 1}, is_idempotent=False)

    with pytest.raises(CommandError) as caught:
        trio.run(run)
    assert caught.value.code == ErrorCode.HostUnreachable


def test_a_question_may_be_answered_by_any_member_that_has_come_up_to_the_known_time() -> None:
    servers, clock = FakeConfigServers(TIME), VectorClock()
    catalog = client_of(servers, clock)
    trio.run(catalog.read, read_shards())
    trio.run(catalog.ask, {"usersInfo": 1})
    assert servers.preferences == [PRIMARY, PRIMARY_PREFERRED]
    assert servers.commands[-1]["readConcern"] == {"level": "local", "afterClusterTime": TIME}


async def test_operations_that_can_do_without_the_config_servers_wait_once_until_these_answer(
    autojump_clock: trio.testing.MockClock,
) -> None:
    servers = FakeConfigServers(TIME)
    servers.is_silent = True

    catalog = client_of(servers, VectorClock())
    async with trio.open_nursery() as nursery:
        flights: SingleFlight[str, Any] = SingleFlight(nursery)
        read = partial(flights.run, "shards", lambda: catalog.read(read_shards()))
        waits = []
        for _ in range(3):
            began = trio.current_time()
            assert await catalog.attempt_briefly(read) is None
            waits.append(trio.current_time() - began)
        assert waits == [PATIENCE_SECONDS, 0.0, 0.0]
        assert len(servers.commands) == 1  # which all of them have waited for
        servers.is_silent = False
        await catalog.command({"ping": 1})
        await trio.sleep(READ_SECONDS_MAX)
        assert await catalog.attempt_briefly(read) == []


async def test_operations_do_not_wait_for_config_servers_that_fail() -> None:
    servers = FakeConfigServers(TIME)
    servers.failure = CommandError(ErrorCode.Unauthorized, "not authorized")

    catalog = client_of(servers, VectorClock())
    assert await catalog.attempt_briefly(lambda: catalog.read(read_shards())) is None
