"""Commands that the router answers without the cluster; the expectations are replies of mongod 6.0.5."""

from typing import Any

import pytest
from bson.int64 import Int64
from bson.objectid import ObjectId

from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from tests.router.lone_router import TEST_COMMANDS, run_lone, run_one

Command = dict[str, Any]

NOT_IN_VERSION_1 = (
    "Provided apiStrict:true, but the command {} is not in API Version 1. Information on supported commands and "
    "migrations in API Version 1 can be found at https://dochub.mongodb.org/core/manual-versioned-api"
)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ({"apiStrict": True}, 4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion"),
        ({"apiStrict": False}, 4886600, "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion"),
        ({"apiVersion": "2"}, 322, "Cannot accept API version 2"),
        ({"apiVersion": "3"}, 322, 'API version must be "1"'),
        (
            {"apiVersion": 1},
            14,
            "BSON field 'APIParametersFromClient.apiVersion' is the wrong type 'int', expected type 'string'",
        ),
        (
            {"apiVersion": "1", "apiStrict": 5},
            14,
            "BSON field 'APIParametersFromClient.apiStrict' is the wrong type 'int', expected type 'bool'",
        ),
    ],
    ids=str,
)
def test_arguments_of_the_stable_api(arguments: Command, code: int, message: str) -> None:
    reply = run_one({"ping": 1, **arguments})
    assert (reply["code"], reply["errmsg"]) == (code, message)


@pytest.mark.parametrize(
    ("command", "db"),
    [
        *(({name: 1}, "admin") for name in ("ping", "connectionStatus", "hostInfo", "getCmdLineOpts", "features")),
        ({"invalidateUserCache": 1}, "admin"),
        ({"dropDatabase": 1}, "test"),
        ({"drop": "c"}, "test"),
        ({"killCursors": "c", "cursors": []}, "test"),
    ],
    ids=str,
)
def test_an_unknown_argument(command: Command, db: str) -> None:
    (reply,) = run_lone({**command, "unknown": 1}, db=db)
    name = next(iter(command))
    assert (reply["code"], reply["errmsg"]) == (40415, f"BSON field '{name}.unknown' is an unknown field.")


@pytest.mark.parametrize("command", [{"connectionStatus": 1, "showPrivileges": True}, {"features": 1, "oidReset": 1}])
def test_known_arguments(command: Command) -> None:
    assert run_one({**command, "comment": 1, "$readPreference": {"mode": "primary"}})["ok"] == 1.0


@pytest.mark.parametrize("command", ["buildInfo", "isMaster", "whatsmyuri", "distinct"])
def test_command_outside_the_stable_api(command: str) -> None:
    reply = run_one({command: 1, "apiVersion": "1", "apiStrict": True})
    assert (reply["code"], reply["errmsg"]) == (323, NOT_IN_VERSION_1.format(command))


@pytest.mark.parametrize("arguments", [{"apiVersion": "1", "apiStrict": True}, {"apiVersion": None}])
def test_command_in_the_stable_api(arguments: Command) -> None:
    assert run_one({"ping": 1, **arguments}) == {"ok": 1.0}


def test_deprecated_command() -> None:
    refused, run, missing = run_lone(
        {"testDeprecation": 1, "apiVersion": "1", "apiDeprecationErrors": True},
        {"testDeprecation": 1, "apiVersion": "1"},
        {"testVersion2": 1, "apiVersion": "1", "apiStrict": True},
        **TEST_COMMANDS,
    )
    assert (refused["code"], refused["codeName"]) == (324, "APIDeprecationError")
    assert run == {"ok": 1.0}
    assert missing["code"] == 323


def test_api_version_can_be_required() -> None:
    *refused, was, run = run_lone(
        {"ping": 1},
        {"hello": 1},
        {"find": 5, "apiVersion": None},
        {"setParameter": 1, "requireApiVersion": False, "apiVersion": "1"},
        {"ping": 1},
        requireApiVersion="true",
    )
    assert {(reply["code"], reply["errmsg"]) for reply in refused} == {
        (498870, "The apiVersion parameter is required, please configure your MongoClient's API version")
    }
    assert was == {"was": True, "ok": 1.0}
    assert run == {"ok": 1.0}


def test_api_version_is_not_required_at_first() -> None:
    found, missing = run_lone({"getParameter": {"showDetails": True}, "requireApiVersion": 1}, {"nosuch": 1})
    assert found["requireApiVersion"] == {"value": False, "settableAtRuntime": True, "settableAtStartup": True}
    assert missing["code"] == 59


@pytest.mark.parametrize("command", ["ping", "find", "count", "getMore", "serverStatus", "killCursors", "getLog"])
def test_command_that_does_not_write_refuses_a_write_concern(command: str) -> None:
    reply = run_one({command: 1, "writeConcern": {"w": 1}})
    assert (reply["code"], reply["errmsg"]) == (72, "Command does not support writeConcern")


def test_commands_with_a_write_concern() -> None:
    """As a mongod answers for the commands that it has; mongos's sources for the others."""
    supporting = {entry.name for entry in ROUTER_COMMANDS if entry.supports_write_concern}
    reading = {entry.name for entry in ROUTER_COMMANDS if entry.reads}
    assert supporting & reading <= {"aggregate", "mapReduce"}
    assert {
        *(
            "insert",
            "update",
            "delete",
            "findAndModify",
            "aggregate",
            "create",
            "createIndexes",
            "drop",
            "dropDatabase",
        ),
        *("dropIndexes", "renameCollection", "collMod", "convertToCapped", "setIndexCommitQuorum", "createUser"),
        *("dropUser", "setDefaultRWConcern", "setFeatureCompatibilityVersion", "appendOplogNote"),
    } <= supporting


@pytest.mark.parametrize(
    ("value", "seed", "expected"),
    [
        (1, 0, 5902408780260971510),
        (1.5, 0, 5902408780260971510),
        ("a", 0, 2780795045148116090),
        (None, 0, 2338878944348059895),
        ({"a": 1}, 0, -8705610352600103477),
        (ObjectId("0" * 24), 0, -4293118519463489418),
        (1, 5, 5030011086328485429),
        ("a", 5, -907838379928738798),
    ],
)
def test_hash_bson_element(value: Any, seed: int, expected: int) -> None:  # noqa: ANN401 - BSON values
    reply = run_one({"_hashBSONElement": value, "seed": seed}, **TEST_COMMANDS)
    assert reply == {"key": value, "seed": seed, "out": expected, "ok": 1.0}


def test_hash_bson_element_without_a_number_as_seed() -> None:
    reply = run_one({"_hashBSONElement": 1, "seed": "a"}, **TEST_COMMANDS)
    assert reply == {"key": 1, "ok": 0.0, "errmsg": "seed must be a number"}


@pytest.mark.parametrize("command", ["reapLogicalSessionCacheNow", "connPoolSync", "rotateCertificates"])
def test_commands_that_only_succeed(command: str) -> None:
    assert run_one({command: 1}, **TEST_COMMANDS) == {"ok": 1.0}


def test_commands_for_tests_alone() -> None:
    """Commands that a mongod has only with test commands; all other commands of the router are always there."""
    assert {entry.name for entry in ROUTER_COMMANDS if entry.test_only} == {
        *("_hashBSONElement", "clearLog", "configureFailPoint", "echo", "multicast", "reapLogicalSessionCacheNow"),
        "logMessage",
        *("refreshLogicalSessionCacheNow", "testDeprecation", "testDeprecationInVersion2", "testRemoval"),
        *("testVersion2", "testVersions1And2"),
    }


def test_get_last_error() -> None:
    reply = run_one({"getLastError": 1})
    assert (reply["code"], reply["errmsg"]) == (5739000, "getLastError command is not supported")


def test_relics() -> None:
    assert run_one({"netstat": 1}) == {"configserver": "config/127.0.0.1:1", "isdbgrid": 1, "ok": 1.0}
    assert run_one({"availableQueryOptions": 1})["options"] == 182
    assert isinstance(run_one({"_isSelf": 1})["id"], ObjectId)


def test_diagnostic_data_is_collected_on_demand() -> None:
    status, diagnostic = run_lone({"serverStatus": 1}, {"getDiagnosticData": 1})
    assert list(diagnostic) == ["data", "ok"]
    data = diagnostic["data"]
    assert list(data) == ["start", "serverStatus", "connPoolStats", "end"]
    for section in (data["serverStatus"], data["connPoolStats"]):
        assert next(iter(section)) == "start"
        assert list(section)[-2:] == ["ok", "end"]
        assert data["start"] <= section["start"] <= section["end"] <= data["end"]
    assert set(status) - set(data["serverStatus"]) == {"sharding"}
    assert data["serverStatus"]["process"] == "mongos"
    assert "pools" in data["connPoolStats"]


def test_features_with_a_new_machine_number() -> None:
    before, reset, after = run_lone({"features": 1}, {"features": 1, "oidReset": True}, {"features": 1})
    assert list(reset) == ["js", "oidMachineOld", "oidMachine", "ok"]
    assert reset["oidMachineOld"] == before["oidMachine"]
    assert reset["oidMachine"] == after["oidMachine"] != before["oidMachine"]


def test_log_component_verbosity() -> None:
    default, changed, shown, level, reset = run_lone(
        {"getParameter": 1, "logComponentVerbosity": 1},
        {"setParameter": 1, "logComponentVerbosity": {"command": 1, "network": {"asio": {"verbosity": 2}}}},
        {"getParameter": 1, "logComponentVerbosity": 1},
        {"setParameter": 1, "logComponentVerbosity": {"verbosity": 0}},
        {"getParameter": 1, "logLevel": 1},
        {"setParameter": 1, "logComponentVerbosity": {"command": -1, "network": {"asio": -1}}},
    )[:5]
    tree = default["logComponentVerbosity"]
    assert tree["verbosity"] == 0
    assert tree["storage"]["wt"]["wtHS"] == {"verbosity": -1}
    assert changed["was"] == tree == level["was"] | {"command": {"verbosity": -1}, "network": tree["network"]}
    assert shown["logComponentVerbosity"]["command"] == {"verbosity": 1}
    assert shown["logComponentVerbosity"]["network"]["asio"] == {"verbosity": 2}
    assert reset["logLevel"] == 0


def test_the_default_verbosity_cannot_be_inherited() -> None:
    _, shown = run_lone(
        {"setParameter": 1, "logComponentVerbosity": {"verbosity": -1}},
        {"getParameter": 1, "logComponentVerbosity": 1},
    )
    assert shown["logComponentVerbosity"]["verbosity"] == 0


@pytest.mark.parametrize(
    ("value", "code", "message"),
    [
        ({"commandx": 1}, 2, "Invalid component name default.commandx"),
        ({"query": {"planner": {"verbosity": 2}}}, 2, "Invalid component name query.planner"),
        ({"command": "a"}, 2, "Invalid type stringfor component default.command"),
        (5, 14, "log component verbosity is not a BSON object: logComponentVerbosity: 5"),
    ],
    ids=str,
)
def test_wrong_log_component_verbosity(value: Any, code: int, message: str) -> None:  # noqa: ANN401
    reply = run_one({"setParameter": 1, "logComponentVerbosity": value})
    assert (reply["code"], reply["errmsg"]) == (code, message)


def test_profile_says_which_operations_are_logged_as_slow() -> None:
    shown, before, after, back = run_lone(
        {"profile": -1},
        {"profile": 0, "slowms": 5, "sampleRate": 0.5},
        {"profile": 0, "filter": "unset"},
        {"profile": -1},
        db="test",
    )
    assert shown == before == {"was": 0, "slowms": 100, "sampleRate": 1.0, "ok": 1.0}
    assert after == back == {"was": 0, "slowms": 5, "sampleRate": 0.5, "ok": 1.0}


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ({"profile": 1}, 2, "Profiling is not permitted on mongoS"),
        ({"profile": 0, "sampleRate": 2}, 2, "'sampleRate' must be between 0.0 and 1.0 inclusive"),
        (
            {"profile": "x"},
            14,
            "BSON field 'profile.profile' is the wrong type 'string', expected types '[long, int, decimal, double']",
        ),
        ({"profile": 0, "filter": "x"}, 2, "Expected an object, or the string 'unset'."),
    ],
    ids=str,
)
def test_wrong_profile(command: Command, code: int, message: str) -> None:
    reply = run_one(command)
    assert reply["code"] == code
    assert reply["errmsg"].startswith(message)


def test_metrics_of_commands() -> None:
    *_, status = run_lone({"ping": 1}, {"ping": 1, "apiVersion": "2"}, {"nosuch": 1}, {"serverStatus": 1})
    commands = status["metrics"]["commands"]
    assert commands["ping"] == {"failed": 1, "total": 2}
    assert commands["find"] == {"failed": 0, "total": 0}
    assert commands["<UNKNOWN>"] == 1
    assert {type(number) for number in (commands["<UNKNOWN>"], *commands["ping"].values())} == {Int64}


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ({"shutdown": 1, "zz": 1}, 40415, "BSON field 'shutdown.zz' is an unknown field."),
        ({"shutdown": 1, "force": 5}, 14, "BSON field 'shutdown.force' is the wrong type 'int', expected type 'bool'"),
        ({"dropConnections": 1}, 40414, "BSON field 'dropConnections.hostAndPort' is missing but a required field"),
        (
            {"dropConnections": 1, "hostAndPort": 5},
            14,
            "BSON field 'dropConnections.hostAndPort' is the wrong type 'int', expected type 'array'",
        ),
        ({"appendOplogNote": 1}, 4, 'Missing expected field "data"'),
        ({"appendOplogNote": 1, "data": 5}, 14, '"data" had the wrong type. Expected object, found int'),
        ({"getDefaultRWConcern": 1, "zz": 1}, 40415, "BSON field 'getDefaultRWConcern.zz' is an unknown field."),
        (
            {"setProfilingFilterGlobally": 1, "filter": {}},
            7283301,
            "setProfilingFilterGlobally command requires query knob to be enabled",
        ),
        ({"killOp": 1, "op": True}, 14, 'Expected field "op" to have numeric type, but found bool'),
        (
            {"killOp": 1, "op": 1.5},
            2,
            'Expected field "op" to have a value exactly representable as a 64-bit integer, but found op: 1.5',
        ),
        ({"killOp": 1, "op": 1 << 40}, 26823, "invalid op : 1099511627776. Op ID cannot be represented with 32 bits"),
        ({"dataSize": 5}, 2, "collection name has invalid type int"),
        ({"dataSize": ""}, 73, "Invalid namespace specified ''"),
        (
            {"aggregate": 5, "pipeline": [], "cursor": {}},
            9,
            "Invalid command format: the 'aggregate' field must specify a collection name or 1",
        ),
        ({"aggregate": None, "pipeline": [], "cursor": {}}, 14, "collection name has invalid type: null"),
        (
            {"aggregate": 1, "pipeline": [], "cursor": {}},
            73,
            "{aggregate: 1} is not valid for an empty pipeline.",
        ),
        (
            {"aggregate": 1, "pipeline": []},
            9,
            "The 'cursor' option is required, except for aggregate with the explain argument",
        ),
        ({"count": 5}, 73, "collection name has invalid type int"),
        ({"find": 5}, 2, "collection name has invalid type int"),
        ({"killCursors": "", "cursors": []}, 73, "Invalid namespace specified 'admin.'"),
        ({"filemd5": 1, "root": 5}, 73, "'root' must be of type String"),
        ({"renameCollection": 5, "to": "d.y"}, 2, "collection name has invalid type int"),
        ({"renameCollection": "d", "to": "d.y"}, 73, "Invalid namespace specified 'd'"),
        ({"renameCollection": "d.x\0", "to": "d.y"}, 73, "namespaces cannot have embedded null characters"),
        ({"split": "d.\0", "find": {"a": 1}}, 73, "namespaces cannot have embedded null characters"),
        ({"renameCollection": "d.x", "to": "d"}, 73, "Invalid target namespace: d"),
        ({"renameCollection": "d.x", "to": "d.y\0"}, 73, "namespaces cannot have embedded null characters"),
        ({"renameCollection": "d.x", "to": "d.$x"}, 20, "error with target namespace: Invalid collection name: $x"),
        ({"renameCollection": "d..a", "to": "d.y"}, 20, "error with source namespace: Invalid collection name: .a"),
        (
            {"renameCollection": "d.x", "to": "d.system.foo"},
            20,
            "error with target namespace: Invalid system namespace: d.system.foo",
        ),
        ({"explain": {"find": "x"}, "zz": 1}, 40415, "BSON field 'explain.zz' is an unknown field."),
        ({"explain": None}, 40414, "BSON field 'explain.explain' is missing but a required field"),
    ],
    ids=str,
)
def test_errors_are_those_of_mongod(command: Command, code: int, message: str) -> None:
    reply = run_one(command)
    assert (reply["code"], reply["errmsg"]) == (code, message)


def test_kill_op_of_the_router_itself() -> None:
    """In MongoDB, a number without an operation is not an error."""
    assert run_one({"killOp": 1, "op": 77}) == {"info": "attempting to kill op", "ok": 1.0}


def test_default_concerns_before_the_first_report() -> None:
    assert run_one({"getDefaultRWConcern": 1, "inMemory": True}) == {"inMemory": True, "ok": 1.0}


def test_there_is_a_greatest_number_of_sessions() -> None:
    first, second = run_lone({"startSession": 1}, {"startSession": 1}, maxSessions="1")
    assert first["ok"] == 1
    assert (second["code"], second["codeName"]) == (261, "TooManyLogicalSessions")
    assert second["errmsg"].startswith("Unable to add session ID ")


CLIENT = {"driver": {"name": "driver", "version": "1"}, "os": {"type": "Linux"}}


@pytest.mark.parametrize(
    ("first", "codes"),
    [({"client": CLIENT}, [None, 186]), ({}, [None, 186]), ({"client": {}}, [183, None])],
    ids=["sent before", "first hello without", "first hello refused"],
)
def test_client_metadata_are_fixed_by_the_first_hello(first: Command, codes: list[int | None]) -> None:
    replies = run_lone({"hello": 1, **first}, {"hello": 1, "client": CLIENT})
    assert [reply.get("code") for reply in replies] == codes
    if 186 in codes:
        assert replies[1]["errmsg"] == "The client metadata document may only be sent in the first hello"


def test_the_cursor_of_local_operations_has_an_id_of_64_bits() -> None:
    """Drivers that read only the fields they need, such as the Node.js driver, find no id of another type."""
    reply = run_one({"aggregate": 1, "pipeline": [{"$currentOp": {"localOps": True}}], "cursor": {}})
    assert reply["cursor"]["id"] == 0
    assert isinstance(reply["cursor"]["id"], Int64)


def test_query_stats_need_no_shard() -> None:
    reply = run_one({"aggregate": 1, "pipeline": [{"$queryStats": {}}], "cursor": {}})
    assert reply["cursor"] == {"firstBatch": [], "id": Int64(0), "ns": "admin.$cmd.aggregate"}


@pytest.mark.parametrize(
    ("target", "db", "stage", "code"),
    [("c", "admin", {}, 73), (1, "shop", {}, 73), (1, "admin", {"transformIdentifiers": {}}, 9), (1, "admin", 1, 9)],
)
def test_query_stats_are_refused_elsewhere_and_with_arguments(target: Any, db: str, stage: Any, code: int) -> None:  # noqa: ANN401
    (reply,) = run_lone({"aggregate": target, "pipeline": [{"$queryStats": stage}], "cursor": {}}, db=db)
    assert reply["code"] == code
