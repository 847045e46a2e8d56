"""The table of commands' required privileges, row by row."""

from typing import Any

import bson
import pytest

from shardwright.daemon.users import Privileges
from shardwright.router.access.access_control import WITHOUT_LOG_IN
from shardwright.router.access.command_needs import TABLE
from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request


def request_of(command: dict[str, Any], db: str = "d") -> Request:
    return Request(OpMsg(op_msg(bson.encode({**command, "$db": db}), request_id=1)))


def test_every_command_has_a_row_or_needs_no_log_in() -> None:
    names = {entry.name for entry in ROUTER_COMMANDS}
    assert TABLE.keys() | WITHOUT_LOG_IN == names
    assert not TABLE.keys() & WITHOUT_LOG_IN


@pytest.mark.parametrize("name", ["_killOperations", "multicast"])
def test_no_role_is_enough_for_what_is_for_the_cluster_alone(name: str) -> None:
    everywhere = [{"resource": each, "actions": ["internal"]} for each in ({"anyResource": True}, {"cluster": True})]
    (need,) = TABLE[name](request_of({name: 1}, "admin"))
    assert not need.is_met(Privileges.from_documents(everywhere))
    assert need.is_met(Privileges.from_documents([{"resource": {"anyResource": True}, "actions": ["anyAction"]}]))


def on(*actions: str, db: str = "d", collection: str = "c") -> list[dict[str, Any]]:
    return [{"resource": {"db": db, "collection": collection}, "actions": list(actions)}]


CLUSTER = [{"resource": {"cluster": True}, "actions": ["inprog", "addShard", "listSessions"]}]


@pytest.mark.parametrize(
    ("command", "privileges"),
    [
        ({"find": "c"}, on("find")),
        ({"insert": "c", "documents": [{}]}, on("insert")),
        (
            {"insert": "c", "documents": [{}], "bypassDocumentValidation": True},
            on("insert", "bypassDocumentValidation"),
        ),
        ({"update": "c", "updates": [{"q": {}, "u": {}}]}, on("update")),
        ({"update": "c", "updates": [{"q": {}, "u": {}}, {"q": {}, "u": {}, "upsert": True}]}, on("update", "insert")),
        ({"delete": "c", "deletes": [{"q": {}, "limit": 1}]}, on("remove")),
        ({"findAndModify": "c", "remove": True}, on("find", "remove")),
        ({"findAndModify": "c", "update": {}, "upsert": True}, on("find", "update", "insert")),
        ({"aggregate": "c", "pipeline": [{"$match": {}}], "cursor": {}}, on("find")),
        ({"aggregate": "c", "pipeline": [{"$collStats": {}}], "cursor": {}}, on("collStats")),
        ({"aggregate": "c", "pipeline": [{"$out": "o"}]}, on("find") + on("insert", "remove", collection="o")),
        (
            {"aggregate": "c", "pipeline": [{"$merge": {"into": {"db": "e", "coll": "o"}, "whenMatched": "fail"}}]},
            on("find") + on("insert", db="e", collection="o"),
        ),
        (
            {"aggregate": "c", "pipeline": [{"$facet": {"x": [{"$lookup": {"from": "f", "pipeline": []}}]}}]},
            on("find") + on("find", collection="f"),
        ),
        (
            {"aggregate": "c", "pipeline": [{"$unionWith": {"coll": "f", "pipeline": [{"$unionWith": "g"}]}}]},
            on("find") + on("find", collection="f") + on("find", collection="g"),
        ),
        ({"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": True}}]}, CLUSTER),
        ({"aggregate": 1, "pipeline": [{"$queryStats": {}}]}, CLUSTER),
        ({"aggregate": 1, "pipeline": [{"$changeStream": {}}]}, on("find", "changeStream", collection="")),
        (
            {"explain": {"aggregate": "c", "pipeline": [{"$out": "o"}]}},
            on("find") + on("insert", "remove", collection="o"),
        ),
        ({"create": "c"}, on("insert")),
        ({"create": "c", "viewOn": "s", "pipeline": []}, on("createCollection")),
        ({"renameCollection": "d.c", "to": "d.t"}, on("renameCollectionSameDB", collection="")),
        (
            {"renameCollection": "d.c", "to": "d.t", "dropTarget": True},
            on("renameCollectionSameDB", collection="") + on("dropCollection", collection="t"),
        ),
        (
            {"renameCollection": "d.c", "to": "e.t"},
            on("find", "dropCollection") + on("insert", "createIndex", db="e", collection="t"),
        ),
        ({"addShardToZone": "s", "zone": "z"}, on("update", db="config", collection="shards")),
        ({"shardCollection": "e.c", "key": {"a": 1}}, on("enableSharding", db="e")),
        ({"createUser": "u", "pwd": "p", "roles": [{"role": "read", "db": "e"}]},
         on("createUser", collection="") + on("grantRole", db="e", collection="")),
        ({"usersInfo": {"user": "u", "db": "e"}}, on("viewUser", db="e", collection="")),
        ({"addShard": "s/h:1"}, CLUSTER),
        ({"checkMetadataConsistency": "c"}, on("validate")),
        ({"checkMetadataConsistency": 1}, on("validate", collection="")),
        ({"listCollections": 1}, on("listCollections", collection="")),
    ],
)  # fmt: skip
def test_a_command_needs_exactly(command: dict[str, Any], privileges: list[dict[str, Any]]) -> None:
    """It may run with these privileges, and not without any one of their actions that it uses."""
    needs = list(TABLE[next(iter(command))](request_of(command)))
    assert needs
    assert all(need.is_met(Privileges.from_documents(privileges)) for need in needs)
    for index in range(len(privileges) if privileges is not CLUSTER else 0):
        for action in privileges[index]["actions"]:
            fewer = [{**each, "actions": list(each["actions"])} for each in privileges]
            fewer[index]["actions"].remove(action)
            assert not all(need.is_met(Privileges.from_documents(fewer)) for need in needs), action


def may_run(command: dict[str, Any], privileges: list[dict[str, Any]]) -> bool:
    needs = TABLE[next(iter(command))](request_of(command))
    return all(need.is_met(Privileges.from_documents(privileges)) for need in needs)


@pytest.mark.parametrize("name", ["create", "collMod"])
def test_who_may_read_a_view_must_be_able_to_read_what_it_shows(name: str) -> None:
    command = {name: "c", "viewOn": "s", "pipeline": [{"$unionWith": "t"}]}
    defining = on("createCollection", "collMod")
    sources = on("find", collection="s") + on("find", collection="t")
    assert may_run(command, defining)
    assert not may_run(command, defining + on("find"))
    assert not may_run(command, defining + on("find") + sources[:1])
    assert may_run(command, defining + on("find") + sources)


def test_renaming_makes_no_collection_readable() -> None:
    renaming = on("renameCollectionSameDB", collection="")
    command = {"renameCollection": "d.c", "to": "d.t"}
    assert not may_run(command, renaming + on("find", collection="t"))
    assert may_run(command, renaming + on("find", collection="t") + on("find"))
    copying = on("find", "dropCollection") + on("insert", "createIndex", collection="t")
    assert may_run(command, copying)
    assert not may_run({"renameCollection": "d.c", "to": "d.system.views"}, renaming)


@pytest.mark.parametrize(
    "stage",
    [
        {"$mergeCursors": {}},
        {"$_internalInhibitOptimization": {}},
        {"$queue": []},
        {"$setVariableFromSubPipeline": {}},
        {"$group": {"_id": 1, "$doingMerge": True}},
        {"$notAStage": {}},
        {"$lookup": {"from": "c", "pipeline": [{"$mergeCursors": {}}], "as": "x"}},
        {"$unionWith": {"coll": "c", "pipeline": [{"$mergeCursors": {}}]}},
        {"$facet": {"x": [{"$mergeCursors": {}}]}},
        {"$match": {"$expr": {"$_internalKeyStringValue": {}}}},
    ],
)
def test_no_user_may_send_what_servers_send_each_other(stage: dict[str, Any]) -> None:
    request = request_of({"aggregate": "c", "pipeline": [{"$match": {}}, stage], "cursor": {}})
    with pytest.raises(CommandError):
        list(TABLE["aggregate"](request))
