"""Test commands of the router, and its fail point ``failCommand``."""

import threading
from typing import Any

import pytest

from shardwright.router.context.parameters import parse_parameter
from tests.fail_points import fail_point
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.routers import connect_to_all, extra_router
from tests.local_cluster import Client, RunningCluster
from tests.router.lone_router import TEST_COMMANDS, run_lone, run_one

Command = dict[str, Any]

PING_FAILS = {"failCommands": ["ping"], "errorCode": 91}
DB = "fail_points"


def configure(mode: Any, data: Command | None = None) -> Command:  # noqa: ANN401 - also wrong ones
    return {"configureFailPoint": "failCommand", "mode": mode, **({} if data is None else {"data": data})}


def test_test_commands_are_off_for_users() -> None:
    assert run_one(configure("off"))["codeName"] == "CommandNotFound"
    assert "configureFailPoint" not in run_one({"listCommands": 1})["commands"]
    assert run_one({"getParameter": 1, "enableTestCommands": 1})["enableTestCommands"] is False
    assert "setParameter" not in run_one({"getCmdLineOpts": 1})["parsed"]


def test_how_a_driver_learns_that_test_commands_are_on() -> None:
    assert run_one({"getParameter": 1, "enableTestCommands": 1}, **TEST_COMMANDS)["enableTestCommands"] is True
    assert run_one({"getCmdLineOpts": 1}, **TEST_COMMANDS)["parsed"]["setParameter"] == {"enableTestCommands": "1"}
    assert "configureFailPoint" in run_one({"listCommands": 1}, **TEST_COMMANDS)["commands"]


def test_test_commands_cannot_be_enabled_later() -> None:
    assert run_one({"setParameter": 1, "enableTestCommands": 1}) == {
        "ok": 0.0,
        "errmsg": "not allowed to change [enableTestCommands] at runtime",
    }


@pytest.mark.parametrize("text", ["enableTestCommands", "enableTestCommands=perhaps", "maxBSONDepth=5", "logLevel=9"])
def test_parameter_of_the_command_line_is_checked(text: str) -> None:
    with pytest.raises(ValueError, match="is n"):
        parse_parameter(text)


def test_command_fails_while_the_fail_point_is_on() -> None:
    replies = run_lone(configure("alwaysOn", PING_FAILS), {"ping": 1}, configure("off"), {"ping": 1}, **TEST_COMMANDS)
    assert replies == [
        {"count": 0, "ok": 1.0},
        {
            "ok": 0.0,
            "errmsg": "Failing command via 'failCommand' failpoint",
            "code": 91,
            "codeName": "ShutdownInProgress",
        },
        {"count": 1, "ok": 1.0},
        {"ok": 1.0},
    ]


@pytest.mark.parametrize(
    ("mode", "expected"), [({"times": 2}, [0, 0, 1]), ({"skip": 2}, [1, 1, 0]), ({"activationProbability": 0}, [1] * 3)]
)
def test_modes(mode: Command, expected: list[int]) -> None:
    _, *replies = run_lone(configure(mode, PING_FAILS), *[{"ping": 1}] * 3, **TEST_COMMANDS)
    assert [reply["ok"] for reply in replies] == expected


def test_only_commands_that_match_count() -> None:
    data = {**PING_FAILS, "appName": "other"}
    commands = [configure({"times": 1}, data), {"ping": 1}, configure("off")]
    assert [reply.get("count") for reply in run_lone(*commands, app_name="app", **TEST_COMMANDS)] == [0, None, 0]
    assert [reply.get("count") for reply in run_lone(*commands, app_name="other", **TEST_COMMANDS)] == [0, None, 1]


@pytest.mark.parametrize("name", ["hello", "isMaster", "ismaster"])
@pytest.mark.parametrize(("app_name", "ok"), [("app", 0.0), ("other", 1.0)])
def test_application_that_the_first_hello_names(name: str, app_name: str, ok: float) -> None:
    """Drivers' tests make a new connection time out, and no other."""
    data = {"failCommands": ["hello", "isMaster"], "errorCode": 91, "appName": "app"}
    metadata = {
        "application": {"name": app_name},
        "driver": {"name": "driver", "version": "1"},
        "os": {"type": "Linux"},
    }
    _, reply = run_lone(configure("alwaysOn", data), {name: 1, "client": metadata}, **TEST_COMMANDS)
    assert reply["ok"] == ok


def test_a_blocked_command_may_take_longer_than_its_max_time() -> None:
    """As in a mongod, which does not look at the time while it blocks a command."""
    data = {"failCommands": ["ping"], "blockConnection": True, "blockTimeMS": 50, "errorCode": 91}
    _, reply = run_lone(configure("alwaysOn", data), {"ping": 1, "maxTimeMS": 1}, **TEST_COMMANDS)
    assert reply["code"] == 91


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        (configure("xx"), 2, "unknown mode: xx"),
        (configure(1), 14, "'mode' must be a string or JSON object"),
        (configure({"times": -1}), 2, "'times' option to 'mode' must be positive"),
        (configure({"times": "a"}), 14, 'Expected field "times" to have numeric type, but found string'),
        (
            configure({"skip": 1.5}),
            2,
            'Expected field "skip" to have a value exactly representable as a 64-bit integer, but found skip: 1.5',
        ),
        (configure({"activationProbability": 2}), 2, "activationProbability must be between 0.0 and 1.0; found 2"),
        (
            configure({}),
            2,
            "'mode' must be one of 'off', 'alwaysOn', '{times:n}', '{skip:n}' or '{activationProbability:p}'",
        ),
        ({"configureFailPoint": "nosuch", "mode": "off"}, 266, "nosuch not found"),
        ({"configureFailPoint": "failCommand"}, 20, "When setting a failpoint, you must supply a 'mode'"),
        ({**configure("off"), "data": 5}, 14, "the 'data' option must be a JSON object"),
        (
            {"waitForFailPoint": "failCommand", "timesEntered": 1},
            40414,
            "BSON field 'waitForFailPoint.maxTimeMS' is missing but a required field",
        ),
        ({"waitForFailPoint": "nosuch", "timesEntered": 1, "maxTimeMS": 100}, 266, "nosuch not found"),
        ({"waitForFailPoint": "failCommand", "timesEntered": 1, "maxTimeMS": 1}, 50, "operation exceeded time limit"),
    ],
    ids=str,
)
def test_errors_are_those_of_mongod(command: Command, code: int, message: str) -> None:
    reply = run_one(command, **TEST_COMMANDS)
    assert (reply["code"], reply["errmsg"]) == (code, message)


def test_on_a_cluster(cluster: RunningCluster) -> None:
    """An error, a write concern error after the write, a closed connection, and a wait for a blocked find."""
    with cluster.direct("router.0", appName=DB) as client, cluster.direct("router.0") as other:
        collection = client[DB].failing
        collection.drop()
        where = {"appName": DB}
        insert = {"insert": "failing", "documents": [{"_id": 1}]}
        with fail_point(client, "failCommand", {"times": 1}, failCommands=["insert"], errorCode=11, **where):
            assert run(client, insert)["code"] == 11
            assert run(client, insert)["n"] == 1
        error = {"code": 64, "errmsg": "later"}
        with fail_point(
            client, "failCommand", failCommands=["find", "delete"], writeConcernError=error, errorLabels=["L"], **where
        ):
            delete = {"delete": "failing", "deletes": [{"q": {"_id": 1}, "limit": 1}]}
            reply = run(client, delete)
            assert (reply["n"], reply["writeConcernError"], reply["errorLabels"]) == (1, error, ["L"])
            assert "writeConcernError" not in run(client, {"find": "failing"})
        with (
            fail_point(client, "failCommand", {"times": 1}, failCommands=["ping"], closeConnection=True),
            raw_client(cluster.address("router.0")) as raw,
        ):
            raw.send_command({"ping": 1})
            assert raw.is_closed_by_server()
        blocked: Command = {"failCommands": ["find"], "blockConnection": True, "blockTimeMS": 100}
        with fail_point(other, "failCommand", **blocked, **where) as point:
            finding = threading.Thread(target=run, args=(client, {"find": "failing"}))
            finding.start()
            point.wait_entered()
            finding.join()
        client.drop_database(DB)


def run(client: Any, command: Command) -> Command:  # noqa: ANN401 - MongoClient
    reply: Command = client[DB].command(command, check=False)
    return reply


def test_fail_point_of_a_router_of_several_workers(cluster: RunningCluster) -> None:
    """It is on in all of them, and ``times`` counts the commands of all of them."""
    options = ("--workers", "2", "--set-parameter", "enableTestCommands=1")
    with extra_router(cluster, *options) as (address, _):
        clients = connect_to_all(address, workers=2, connections=12)
        assert clients[0].command(configure("alwaysOn", PING_FAILS))["ok"] == 1
        assert {client.command({"ping": 1})["ok"] for client in clients} == {0}
        assert clients[1].command(configure({"times": 3}, PING_FAILS))["count"] == 12
        assert sum(client.command({"ping": 1})["ok"] for client in clients) == 9
        assert clients[2].command(configure("off"))["count"] == 15
        assert {client.command({"ping": 1})["ok"] for client in clients} == {1}
        for client in clients:
            client.socket.close()


def assert_log_is_cleared(first: RawClient, other: RawClient) -> None:
    """`clearLog` in one process clears the log of another."""

    def lines() -> str:
        return str(other.command({"getLog": "global"})["log"])

    other.command({"logMessage": "a line of the other process"})
    assert "a line of the other process" in lines()
    assert first.command({"clearLog": "global"})["ok"] == 1.0
    assert "a line of the other process" not in lines()


def assert_routing_is_flushed(first: RawClient, other: RawClient, router: Client) -> None:
    """`flushRouterConfig` in one process makes another read the routing tables again."""
    namespace = f"{DB}.flushed"

    def version() -> Any:  # noqa: ANN401 - a timestamp
        return other.command({"getShardVersion": namespace})["version"]

    router.admin.command("shardCollection", namespace, key={"a": 1})
    before = version()
    router.admin.command("split", namespace, middle={"a": 1})
    assert version() == before
    assert first.command({"flushRouterConfig": namespace})["ok"] == 1.0
    assert version() > before
    router.drop_database(DB)


@pytest.mark.parametrize("workers", [2])
def test_what_all_processes_share(cluster: RunningCluster, workers: int) -> None:
    """`waitForFailPoint` counts in all processes; `setParameter` changes a parameter in all of them."""
    with extra_router(cluster, "--workers", str(workers), "--set-parameter", "enableTestCommands=1") as (address, _):
        clients = connect_to_all(address, workers, 8)
        pids = [client.command({"serverStatus": 1})["pid"] for client in clients]
        first, other = clients[0], clients[next(n for n, pid in enumerate(pids) if pid != pids[0])]
        waiting = raw_client(address)
        with waiting as waiter:
            assert first.command(configure("alwaysOn", PING_FAILS))["ok"] == 1.0
            wait = {"waitForFailPoint": "failCommand", "timesEntered": 3, "maxTimeMS": 600_000}
            waiter.send_command(wait)
            for client in (first, other, other):
                assert client.command({"ping": 1})["ok"] == 0.0
            assert waiter.receive_reply()["ok"] == 1.0
            assert other.command({**wait, "maxTimeMS": 600_000})["ok"] == 1.0
            assert other.command({**wait, "timesEntered": 4, "maxTimeMS": 1})["code"] == 50
            first.command(configure("off"))
        assert first.command({"setParameter": 1, "cursorTimeoutMillis": 5555})["was"] == 600_000
        assert other.command({"getParameter": 1, "cursorTimeoutMillis": 1})["cursorTimeoutMillis"] == 5555
        assert_log_is_cleared(first, other)
        with cluster.client() as through_another_router:
            assert_routing_is_flushed(first, other, through_another_router)
        for client in clients:
            client.socket.close()
