"""Attempts of logged-in users with few privileges to exceed them."""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from typing import Any, Final
from uuid import uuid4

import pytest
from bson import Binary, Int64, ObjectId, Timestamp
from pymongo.errors import OperationFailure

from shardwright.daemon.users import UserName
from tests.access_control.conftest import PlainMongod
from tests.access_control.users import PASSWORD, LogIn, create_users, raw_user, user_of
from tests.integration.raw_client import RawClient, raw_client
from tests.local_cluster import Client, RunningCluster

Command = dict[str, Any]

_numbers = count()


def error_of(client: Client, db: str, command: Command) -> tuple[int, str]:
    """The code and the text of a refusal, without the command that it shows; 0 if there is none."""
    try:
        client[db].command(command)
    except OperationFailure as failure:
        text = str((failure.details or {}).get("errmsg", ""))
        return failure.code or 0, text.partition(" to execute command")[0]
    return 0, ""


@contextmanager
def new_user(cluster: RunningCluster, *roles: dict[str, str]) -> Iterator[str]:
    """Yield a user of admin with roles, made and dropped by the first router, whose cache is therefore current."""
    name = f"user{next(_numbers)}"
    with cluster.direct("router.0") as root:
        root.admin.command("createUser", name, pwd=PASSWORD, roles=list(roles))
        yield name
        if root.admin.command("usersInfo", name)["users"]:
            root.admin.command("dropUser", name)


ON_SHOP: Final = {"role": "readWrite", "db": "shop"}
UNSHARDED: Final = {"e": ObjectId("0" * 24), "t": Timestamp(0, 0), "v": Timestamp(0, 0)}
AUDIT: Final = {"$impersonatedUsers": [{"user": "chief", "db": "admin"}], "$impersonatedRoles": []}

INTERNAL_FIELDS: Final[list[tuple[str, Any]]] = [
    ("shardVersion", UNSHARDED),
    ("databaseVersion", {"uuid": Binary(uuid4().bytes, 4), "timestamp": Timestamp(1, 1), "lastMod": 1}),
    ("involvedNamespaces", []),
    ("$configTime", Timestamp(4_000_000_000, 1)),
    ("$topologyTime", Timestamp(4_000_000_000, 1)),
    ("$replData", 1),
    ("coordinator", True),
    ("mayChangeOwner", True),
    ("fromMigrate", True),
    ("fromMongos", True),
    ("needsMerge", True),
    ("exchange", {}),
    ("runtimeConstants", {"localNow": 1, "clusterTime": Timestamp(1, 1)}),
    ("mayBypassWriteBlocking", True),
    ("mayBypassWriteBlocking", False),
    ("$audit", AUDIT),
    ("$fromSibling", {"user": "chief", "db": "admin"}),
    ("$fromSibling", True),
    ("traceContext", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("term", Int64(1)),
]
WITH_FIELDS: Final[list[Command]] = [
    {"find": "goods", "filter": {"a": 1}},
    {"aggregate": "goods", "pipeline": [], "cursor": {}},
    {"insert": "goods", "documents": [{"a": 1000}]},
    {"update": "goods", "updates": [{"q": {"a": 1}, "u": {"$set": {"b": 1}}}]},
    {"delete": "goods", "deletes": [{"q": {"a": 1000}, "limit": 0}]},
    {"findAndModify": "goods", "query": {"a": 1}, "update": {"$set": {"b": 1}}},
    {"create": "created"},
    {"drop": "created"},
    {"explain": {"find": "goods"}},
]


@pytest.mark.parametrize("user", ["writer", "chief"])
def test_no_user_sends_what_servers_tell_each_other(closed: RunningCluster, user: str) -> None:
    with user_of(closed, user) as client:
        passed = [
            (name, next(iter(command)))
            for name, value in INTERNAL_FIELDS
            for command in WITH_FIELDS
            if error_of(client, "shop", {**command, name: value})[0] == 0
        ]
    assert passed == []


def test_refusals_of_fields_that_mongod_knows_have_its_words(closed: RunningCluster, plain: PlainMongod) -> None:
    for user in ("writer", "chief"):
        with user_of(closed, user) as ours, plain.client(user) as theirs:
            for added in ({"$audit": AUDIT}, {"mayBypassWriteBlocking": True}, {"mayBypassWriteBlocking": False}):
                for command in ({"ping": 1}, {"find": "goods"}, {"insert": "goods", "documents": [{}]}):
                    expected = error_of(theirs, "shop", {**command, **added})
                    assert expected[0]
                    assert error_of(ours, "shop", {**command, **added}) == expected


INTERNAL_COMMANDS: Final = (
    *("_shardsvrMoveRange", "_shardsvrCreateCollection", "_configsvrMoveRange", "_configsvrBalancerStop"),
    *("_recvChunkStart", "_migrateClone", "_transferMods", "_getNextSessionMods", "_flushDatabaseCacheUpdates"),
    *("setShardVersion", "splitChunk", "prepareTransaction", "coordinateCommitTransaction", "clusterFind"),
    *("_getUserCacheGeneration", "replSetStepDown", "applyOps", "_cloneCatalogData", "_killOperations", "multicast"),
)


def test_internal_commands_are_for_nobody(closed: RunningCluster) -> None:
    for user in ("writer", "chief"):
        with user_of(closed, user) as client:
            codes = {name: error_of(client, "admin", {name: 1})[0] for name in INTERNAL_COMMANDS}
        assert {name for name, code in codes.items() if code not in (13, 59)} == set()


@pytest.mark.parametrize("process", ["shard0.0.shardd", "config.0.configd"])
def test_not_even_root_is_internal_at_a_daemon(closed: RunningCluster, process: str) -> None:
    with closed.direct(process) as system:
        create_users(system)
    with user_of(closed, "chief", process) as client:
        codes = {name: error_of(client, "admin", {name: 1})[0] for name in INTERNAL_COMMANDS if name[0] == "_"}
        assert set(codes.values()) <= {13, 59}
        for name, value in INTERNAL_FIELDS:
            if name not in ("fromMongos", "needsMerge", "exchange", "term", "$fromSibling"):
                assert error_of(client, "shop", {"find": "goods", name: value})[0] in (13, 6317500), name


def test_a_privilege_on_the_cluster_is_none_on_collections(closed: RunningCluster) -> None:
    everything = [{"resource": {"cluster": True}, "actions": ["anyAction"]}]
    with closed.direct("router.0") as root:
        root.admin.command("createRole", "operator", privileges=everything, roles=[])
    with new_user(closed, {"role": "operator", "db": "admin"}) as name, user_of(closed, name) as client:
        assert error_of(client, "admin", {"serverStatus": 1})[0] == 0
        assert error_of(client, "shop", {"find": "goods"}) == (13, "not authorized on shop")
        assert error_of(client, "admin", {"find": "system.users"}) == (13, "not authorized on admin")


def test_blocked_writes_are_blocked_for_those_who_may_not_bypass(closed: RunningCluster, plain: PlainMongod) -> None:
    writes: list[Command] = [
        {"insert": "goods", "documents": [{"a": 1}]},
        {"insert": "plain", "documents": [{"a": 1}, {"a": 2}]},
        {"update": "goods", "updates": [{"q": {}, "u": {"$set": {"x": 1}}, "multi": True}]},
        {"delete": "goods", "deletes": [{"q": {"a": 3}, "limit": 1}]},
        {"findAndModify": "goods", "query": {"a": 4}, "update": {"$set": {"x": 2}}},
        {"aggregate": "goods", "pipeline": [{"$limit": 1}, {"$out": "made"}], "cursor": {}},
        {"create": "blocked"},
        {"drop": "blocked"},
    ]

    def outcome(client: Client, command: Command) -> int:
        try:
            reply = client.shop.command(command)
        except OperationFailure as failure:
            return failure.code or 0
        return sum(error["code"] for error in reply.get("writeErrors", ()))

    def outcomes(writer: Client, chief: Client) -> list[tuple[int, int]]:
        chief.admin.command({"setUserWriteBlockMode": 1, "global": True})
        try:
            return [(outcome(writer, each), outcome(chief, each)) for each in writes]
        finally:
            chief.admin.command({"setUserWriteBlockMode": 1, "global": False})

    with user_of(closed, "writer") as ours, user_of(closed, "chief") as our_chief:
        seen = outcomes(ours, our_chief)
    with plain.client("writer") as theirs, plain.client("chief") as their_chief:
        assert seen == outcomes(theirs, their_chief)
    assert [code for code, _ in seen[:-1]] == [371] * (len(writes) - 1)
    assert {code for _, code in seen} == {0}


def test_nobody_reads_or_kills_the_cursor_of_another(closed: RunningCluster) -> None:
    session = {"id": Binary(uuid4().bytes, 4)}
    with raw_user(closed, "reader") as reader, raw_user(closed, "writer") as writer:
        opened = reader.command({"find": "goods", "batchSize": 2, "lsid": session}, db="shop")["cursor"]["id"]
        for lsid in ({}, {"lsid": session}):
            stolen = writer.command({"getMore": opened, "collection": "goods", **lsid}, db="shop")
            assert stolen["errmsg"] == f"cursor id {opened} was not created by the authenticated user"
            assert writer.command({"killCursors": "goods", "cursors": [opened], **lsid}, db="shop")["code"] == 13
        mine = {"getMore": opened, "collection": "goods", "lsid": session}
        assert reader.command(mine, db="shop")["ok"]


def test_nobody_takes_part_in_the_transaction_of_another(closed: RunningCluster) -> None:
    session = {"id": Binary(uuid4().bytes, 4)}
    within = {"lsid": session, "txnNumber": Int64(1), "autocommit": False}
    with raw_user(closed, "writer") as writer, raw_user(closed, "chief") as chief:
        insert = {"insert": "goods", "documents": [{"a": 3001}]}
        assert writer.command({**insert, **within, "startTransaction": True}, db="shop")["ok"]
        digest = Binary(b"x" * 32)
        for lsid in (session, {**session, "uid": digest}):
            for command in ({"find": "goods"}, {"commitTransaction": 1}, {"abortTransaction": 1}):
                db = "shop" if "find" in command else "admin"
                refused = chief.command({**command, **within, "lsid": lsid}, db=db)
                # Without a token of recovery: there is nothing of this user's to commit.
                assert refused["code"] in (13, 251, 50940), refused
        assert writer.command({"commitTransaction": 1, **within})["ok"]
        assert chief.command({"count": "goods", "query": {"a": 3001}}, db="shop")["n"] == 1


@pytest.mark.parametrize(
    ("lsid", "code"),
    [
        ({"id": Binary(uuid4().bytes, 4), "uid": Binary(b"x" * 32)}, 13),
        ({"id": Binary(uuid4().bytes, 4), "txnUUID": Binary(uuid4().bytes, 4)}, 72),
        ({"id": Binary(uuid4().bytes, 4), "txnUUID": Binary(uuid4().bytes, 4), "txnNumber": Int64(1)}, 72),
    ],
    ids=["of another user", "internal", "internal with a number"],
)
def test_sessions_that_only_servers_name(closed: RunningCluster, plain: PlainMongod, lsid: Command, code: int) -> None:
    with raw_user(closed, "chief") as ours, raw_client(plain.address) as theirs:
        LogIn(theirs, "chief").complete()
        find = {"find": "goods", "limit": 1, "lsid": lsid}
        assert ours.command(find, db="shop")["code"] == theirs.command(find, db="shop")["code"] == code


def test_a_revoked_role_ends_the_batches_of_a_cursor(closed: RunningCluster, plain: PlainMongod) -> None:
    def seen(root: Client, client: Client, name: str) -> list[tuple[int, str]]:
        opened = client.shop.command("find", "goods", batchSize=2)["cursor"]["id"]
        more = {"getMore": opened, "collection": "goods", "batchSize": 2}
        before = error_of(client, "shop", more)
        root.admin.command("revokeRolesFromUser", name, roles=[ON_SHOP])
        after, text = error_of(client, "shop", more)
        root.admin.command("grantRolesToUser", name, roles=[ON_SHOP])
        return [before, (after, text.replace(str(opened), "N")), error_of(client, "shop", more)]

    with new_user(closed, ON_SHOP) as name, closed.direct("router.0") as root, user_of(closed, name) as client:
        ours = seen(root, client, name)
        assert ours == [(0, ""), (13, "not authorized for getMore with cursor id N"), (0, "")]
        with plain.client("root") as their_root:
            their_root.admin.command("createUser", name, pwd=PASSWORD, roles=[ON_SHOP])
            with plain.client(name) as theirs:
                assert seen(their_root, theirs, name) == ours


def test_a_view_needs_no_privilege_on_its_source_in_any_batch(closed: RunningCluster) -> None:
    on_view = [{"resource": {"db": "shop", "collection": "shown"}, "actions": ["find"]}]
    with closed.direct("router.0") as root:
        root.shop.command("create", "shown", viewOn="goods", pipeline=[{"$match": {"a": {"$lt": 50}}}])
        root.admin.command("createRole", "viewer", privileges=on_view, roles=[])
    with new_user(closed, {"role": "viewer", "db": "admin"}) as name, user_of(closed, name) as client:
        assert len(list(client.shop.shown.find(batch_size=5))) >= 40
        assert error_of(client, "shop", {"find": "goods"}) == (13, "not authorized on shop")


def test_a_user_who_is_dropped_loses_cursors_and_transactions(closed: RunningCluster) -> None:
    with closed.direct("router.0") as root, new_user(closed, ON_SHOP) as name, user_of(closed, name) as client:
        opened = client.shop.command("find", "goods", batchSize=2)["cursor"]["id"]
        with client.start_session() as session:
            session.start_transaction()
            client.shop.goods.insert_one({"a": 3002}, session=session)
            root.admin.command("dropUser", name)
            with pytest.raises(OperationFailure, match="command commitTransaction requires authentication"):
                session.commit_transaction()
            refused = error_of(client, "shop", {"getMore": opened, "collection": "goods"})
            assert refused == (13, "command getMore requires authentication")
        root.admin.command("killAllSessions", [])  # the transaction would hold locks for another minute
        # Nor does it belong to somebody who has the name later.
        root.admin.command("createUser", name, pwd=PASSWORD, roles=[])
        assert error_of(client, "shop", {"find": "goods"}) == (13, "command find requires authentication")
        assert root.shop.goods.count_documents({"a": 3002}) == 0


def test_a_user_who_is_created_again_is_another(closed: RunningCluster, plain: PlainMongod) -> None:
    def seen(root: Client, raw: RawClient, name: str) -> list[str]:
        LogIn(raw, name).complete()
        assert raw.command({"find": "goods", "limit": 1}, db="shop")["ok"]
        root.admin.command("dropUser", name)
        root.admin.command("createUser", name, pwd=PASSWORD, roles=["root"])
        found = raw.command({"find": "goods", "limit": 1}, db="shop")
        status = raw.command({"connectionStatus": 1})["authInfo"]
        root.admin.command("dropUser", name)
        assert status["authenticatedUsers"] == []
        return [found.get("errmsg", "")]

    with new_user(closed, ON_SHOP) as name, closed.direct("router.0") as root, plain.client("root") as their_root:
        their_root.admin.command("createUser", name, pwd=PASSWORD, roles=[ON_SHOP])
        with raw_client(closed.address("router.0")) as ours, raw_client(plain.address) as theirs:
            assert seen(root, ours, name) == seen(their_root, theirs, name) == ["command find requires authentication"]


@pytest.mark.parametrize("argument", [{}, {"allUsers": False}, {"users": []}, {"users": [], "allUsers": False}])
def test_lists_of_sessions_are_of_ones_own(closed: RunningCluster, argument: Command) -> None:
    listing = {"aggregate": 1, "pipeline": [{"$listLocalSessions": argument}], "cursor": {}}
    with raw_user(closed, "writer") as writer, raw_user(closed, "chief") as chief:
        for raw in (writer, chief):
            raw.command({"find": "goods", "limit": 1, "lsid": {"id": Binary(uuid4().bytes, 4)}}, db="shop")
        own = UserName("writer", "admin").digest
        assert {each["_id"]["uid"] for each in writer.command(listing)["cursor"]["firstBatch"]} == {own}


REACHING_FURTHER: Final[list[tuple[str, Command]]] = [
    ("shop", {"aggregate": "goods", "pipeline": [{"$lookup": {"from": "system.profile", "pipeline": [], "as": "x"}}]}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$unionWith": {"coll": "system.views", "pipeline": []}}]}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$facet": {"x": [{"$unionWith": "system.js"}]}}]}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$out": {"db": "other", "coll": "x"}}]}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$merge": {"into": {"db": "admin", "coll": "system.users"}}}]}),
    ("shop", {"explain": {"aggregate": "system.users", "pipeline": [], "cursor": {}}}),
    ("other", {"explain": {"find": "secret"}}),
    ("shop", {"explain": {"dropDatabase": 1}}),
    ("shop", {"explain": {"find": "secret", "$db": "other"}}),
    ("shop", {"explain": {"find": "goods", "$db": "shop"}}),
    ("shop", {"explain": {"findandmodify": "goods", "query": {"a": 1}, "remove": True}}),
    ("shop", {"create": "v", "viewOn": "system.profile", "pipeline": []}),
    ("shop", {"mapReduce": "goods", "map": "function(){}", "reduce": "function(){}", "out": {"merge": "x", "db": "e"}}),
    ("admin", {"renameCollection": "shop.goods", "to": "other.goods"}),
    ("admin", {"renameCollection": "shop.nix", "to": "admin.system.users"}),
    ("admin", {"insert": "system.users", "documents": [{"_id": "admin.x"}]}),
    ("admin", {"update": "system.roles", "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "upsert": True}]}),
    ("admin", {"delete": "system.users", "deletes": [{"q": {}, "limit": 0}]}),
    ("admin", {"find": "system.users"}),
    ("admin", {"find": "system.keys"}),
    ("config", {"insert": "shards", "documents": [{"_id": "x"}]}),
    ("config", {"update": "settings", "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "upsert": True}]}),
    ("config", {"find": "transactions"}),
    ("local", {"find": "oplog.rs"}),
    ("local", {"insert": "x", "documents": [{}]}),
    ("shop", {"insert": "system.views", "documents": [{"_id": "x"}]}),
    ("shop", {"find": "system.buckets.x"}),
    ("shop", {"update": "goods", "updates": [{"q": {"a": 1}, "u": {}}, {"q": {}, "u": {}, "upsert": True}]}),
    ("shop", {"distinct": "system.users", "key": "user"}),
    ("shop", {"count": "system.profile"}),
]


@pytest.mark.parametrize("user", ["reader", "writer", "custom"])
def test_what_reaches_further_is_refused_as_by_mongod(closed: RunningCluster, plain: PlainMongod, user: str) -> None:
    with user_of(closed, user) as ours, plain.client(user) as theirs:
        for db, command in REACHING_FURTHER:
            if "aggregate" in command:
                command = {**command, "cursor": {}}
            expected = error_of(theirs, db, command)
            seen = error_of(ours, db, command)
            if 13 in (expected[0], seen[0]):
                assert seen == expected, command


STAGES: list[list[dict[str, Any]]] = [
    [{"$unknown": 1}],
    [{"$limit": 1}, {"$unknown": 1}],
    [{"$vectorSearch": {}}],
    [{"$facet": {"a": [{"$unknown": 1}]}}],
    [{"$lookup": {"from": "goods", "as": "x", "pipeline": [{"$unknown": 1}]}}],
    [{"$unionWith": {"coll": "goods", "pipeline": [{"$limit": 1}, {"$unknown": 1}]}}],
    [{"$limit": 1}, {"$collStats": {}}],
    [{"$limit": 1}, {"$indexStats": {}}],
    [{"$limit": 1}, {"$planCacheStats": {}}],
    [{"$limit": 1}, {"$documents": [{}]}],
    [{"$facet": {"a": [{"$limit": 1}, {"$indexStats": {}}]}}],
]
"""Stages that MongoDB does not know, or that cannot stand where they do."""


@pytest.mark.parametrize("user", ["nothing", "reader", "custom", "chief"])
def test_stages_that_cannot_be_are_refused_as_by_mongod(closed: RunningCluster, plain: PlainMongod, user: str) -> None:
    with user_of(closed, user) as ours, plain.client(user) as theirs:
        for pipeline in STAGES:
            command = {"aggregate": "goods", "pipeline": pipeline, "cursor": {}}
            assert error_of(ours, "shop", command) == error_of(theirs, "shop", command), pipeline


def test_a_mongod_reads_from_the_router_for_a_user(closed: RunningCluster) -> None:
    """As a part of the cluster: a join of more than is handed over in one command."""
    with user_of(closed, "chief") as chief:
        chief.shop.wide.insert_many({"_id": number, "pad": "x" * 1000} for number in range(1400))
        joining = [{"$lookup": {"from": "goods", "localField": "_id", "foreignField": "a", "as": "r"}}]
        grouping = [{"$group": {"_id": "$pad", "n": {"$sum": 1}, "pads": {"$push": "$pad"}}}]
        (group,) = chief.shop.wide.aggregate([*joining, *grouping])
        assert group["n"] == 1400
        chief.shop.wide.drop()


MERGE_CURSORS: Final[list[dict[str, Any]]] = [
    {"$mergeCursors": {"remotes": [], "sort": {}}},
    {"$lookup": {"from": "goods", "pipeline": [{"$mergeCursors": {}}], "as": "x"}},
    {"$unionWith": {"coll": "goods", "pipeline": [{"$_internalInhibitOptimization": {}}]}},
    {"$group": {"_id": 1, "$doingMerge": True}},
    {"$queue": []},
]


def test_stages_of_servers_are_refused_to_root(closed: RunningCluster) -> None:
    with user_of(closed, "chief") as chief:
        for stage in MERGE_CURSORS:
            command = {"aggregate": "goods", "pipeline": [stage], "cursor": {}}
            assert error_of(chief, "shop", command) == (13, "not authorized on shop"), stage
            assert error_of(chief, "shop", {"explain": command})[0] == 13, stage
            created = {"create": f"v{next(_numbers)}", "viewOn": "goods", "pipeline": [stage]}
            assert error_of(chief, "shop", created)[0] == 13, stage
