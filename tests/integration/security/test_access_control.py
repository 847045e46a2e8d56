"""A cluster with access control compared with a plain mongod with the same users."""

import base64
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from stat import S_IMODE
from typing import Any, Final
from uuid import UUID

import pytest
from bson.binary import Binary
from pymongo.errors import OperationFailure, PyMongoError

from shardwright.deploy.mongod import connect
from shardwright.deploy.ports import PortReservation
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, running_cluster

CURSOR_NOT_FOUND: Final = 43

PASSWORD: Final = "pencil"
USERS: Final[dict[str, list[Any]]] = {
    "reader": [{"role": "read", "db": "shop"}],
    "writer": [{"role": "readWrite", "db": "shop"}],
    "designer": [{"role": "dbAdmin", "db": "shop"}],
    "registrar": [{"role": "userAdmin", "db": "shop"}],
    "watcher": [{"role": "clusterMonitor", "db": "admin"}],
    "everyone": [{"role": "readWriteAnyDatabase", "db": "admin"}],
    "chief": [{"role": "root", "db": "admin"}],
    "picky": ["of-goods"],
    "nothing": [],
}


@pytest.fixture(scope="module")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster."""
    with running_cluster(tmp_path_factory.mktemp("closed"), "--auth") as cluster, cluster.client() as root:
        create_users(root)
        root.admin.command("enableSharding", "shop", primaryShard="shard0")
        root.admin.command("shardCollection", "shop.goods", key={"a": 1})
        root.shop.goods.insert_many([{"a": number} for number in range(200)])
        root.shop.create_collection("hidden")
        yield cluster


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory, mongod_binary: str) -> Iterator[Callable[..., Client]]:
    """A mongod with a key file; connects a user to it."""
    directory = tmp_path_factory.mktemp("plain")
    with PortReservation() as ports:
        port = ports.hold_free()
    key = directory / "key"
    key.write_text(base64.b64encode(os.urandom(60)).decode())
    key.chmod(0o600)
    options = ("--dbpath", str(directory), "--port", str(port), "--keyFile", str(key), "--nounixsocket")
    process = subprocess.Popen([mongod_binary, *options], stdout=subprocess.DEVNULL)

    def connected(user: str | None) -> Client:
        given: dict[str, Any] = {} if user is None else {"username": user, "password": PASSWORD}
        return Client("127.0.0.1", port, directConnection=True, **given)

    try:
        with connected(None) as first:
            first.admin.command("createUser", "root", pwd=PASSWORD, roles=["root"])
        with connected("root") as root:
            create_users(root)
            root.shop.goods.insert_many([{"a": number} for number in range(200)])
            root.shop.create_collection("hidden")
        yield connected
    finally:
        process.terminate()
        process.wait()


def create_users(root: Client) -> None:
    goods = {"resource": {"db": "shop", "collection": "goods"}, "actions": ["find"]}
    root.admin.command("createRole", "of-goods", privileges=[goods], roles=[])
    for user, roles in USERS.items():
        root.admin.command("createUser", user, pwd=PASSWORD, roles=roles)


@contextmanager
def user_of(cluster: RunningCluster, user: str | None, process: str = "router.0", **options: str) -> Iterator[Client]:
    """A client of one process."""
    given: dict[str, Any] = {"username": None} if user is None else {"username": user, "password": PASSWORD}
    with cluster.direct(process, **given, **options) as client:
        yield client


def verdict(client: Client, db: str, command: dict[str, Any]) -> str:
    """Return the verdict of access control on a command; later failures do not matter."""
    try:
        client[db].command(command)
    except OperationFailure as error:
        if error.code == 13:
            message = str((error.details or {})["errmsg"])
            return message if "requires authentication" in message else message.partition(" to execute command")[0]
    return "allowed"


SOME_ID: Final = Binary.from_uuid(UUID(int=7))

COMMANDS: Final[list[tuple[str, dict[str, Any]]]] = [
    ("shop", {"find": "goods"}),
    ("shop", {"find": "goods", "filter": {}, "batchSize": 1}),
    ("other", {"find": "goods"}),
    ("shop", {"count": "goods"}),
    ("shop", {"distinct": "goods", "key": "a"}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$match": {}}], "cursor": {}}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$limit": 1}, {"$out": "made"}], "cursor": {}}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$collStats": {"count": {}}}], "cursor": {}}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$indexStats": {}}], "cursor": {}}),
    ("shop", {"aggregate": "goods", "pipeline": [{"$unionWith": "system.users"}, {"$limit": 1}], "cursor": {}}),
    ("admin", {"aggregate": 1, "pipeline": [{"$currentOp": {"allUsers": True}}], "cursor": {}}),
    *[
        (db, {"aggregate": source, "pipeline": [{stage: argument}], "cursor": {}})
        for db, source, stage in (("admin", 1, "$listLocalSessions"), ("config", "system.sessions", "$listSessions"))
        for argument in ({}, {"allUsers": True}, {"users": [{"user": "nobody", "db": "admin"}]})
    ],
    ("shop", {"insert": "goods", "documents": [{"a": 500}]}),
    ("shop", {"update": "goods", "updates": [{"q": {"a": 500}, "u": {"$set": {"b": 1}}}]}),
    ("shop", {"delete": "goods", "deletes": [{"q": {"a": 500}, "limit": 0}]}),
    ("shop", {"findAndModify": "goods", "query": {"a": 700}, "remove": True}),
    ("shop", {"explain": {"find": "goods"}}),
    ("shop", {"createIndexes": "goods", "indexes": [{"key": {"b": 1}, "name": "b_1"}]}),
    ("shop", {"listIndexes": "goods"}),
    ("shop", {"dropIndexes": "goods", "index": "b_1"}),
    ("shop", {"create": "another"}),
    ("shop", {"drop": "another"}),
    ("shop", {"collStats": "goods"}),
    ("shop", {"dbStats": 1}),
    ("shop", {"validate": "another"}),
    ("shop", {"createUser": "u", "pwd": "p", "roles": []}),
    ("shop", {"createUser": "v", "pwd": "p", "roles": [{"role": "read", "db": "other"}]}),
    ("shop", {"usersInfo": {"user": "u", "db": "shop"}}),
    *[("admin", {command: name}) for command in ("usersInfo", "rolesInfo") for name in ("registrar", "root")],
    ("admin", {"usersInfo": 1}),
    ("admin", {"rolesInfo": 1}),
    ("admin", {"usersInfo": {"user": "registrar", "db": "admin"}, "showCredentials": True}),
    ("admin", {"usersInfo": ["registrar", "reader"]}),
    ("shop", {"rolesInfo": ["read", {"role": "userAdmin", "db": "shop"}]}),
    ("shop", {"rolesInfo": "userAdmin"}),
    ("admin", {"updateUser": "registrar", "pwd": PASSWORD}),
    ("admin", {"updateUser": "registrar", "customData": {"a": 1}}),
    ("admin", {"updateUser": "registrar", "pwd": PASSWORD, "roles": ["userAdmin"]}),
    ("shop", {"grantRolesToUser": "u", "roles": ["read"]}),
    ("shop", {"dropUser": "u"}),
    ("shop", {"dropUser": "v"}),
    ("admin", {"serverStatus": 1}),
    ("admin", {"getParameter": 1, "quiet": 1}),
    ("admin", {"setParameter": 1, "quiet": False}),
    ("admin", {"hostInfo": 1}),
    ("admin", {"getCmdLineOpts": 1}),
    ("admin", {"killOp": 1, "op": 999_999}),
    ("admin", {"renameCollection": "shop.nowhere", "to": "other.nowhere"}),
    ("shop", {"connectionStatus": 1}),
    ("shop", {"ping": 1}),
    ("shop", {"buildInfo": 1}),
    ("shop", {"listDatabases": 1}),
    *[("admin", {"listDatabases": 1, **each}) for each in ({}, {"authorizedDatabases": True})],
    ("admin", {"listDatabases": 1, "authorizedDatabases": False}),
    ("shop", {"listCollections": 1}),
    ("shop", {"listCollections": 1, "nameOnly": True, "authorizedCollections": True}),
    ("other", {"listCollections": 1, "nameOnly": True, "authorizedCollections": True}),
    ("shop", {"endSessions": []}),
    ("shop", {"endSessions": [{"id": SOME_ID}]}),
    ("shop", {"refreshSessions": [{"id": SOME_ID, "uid": bytes(32)}]}),
    ("admin", {"killSessions": []}),
    ("admin", {"killSessions": [{"id": SOME_ID, "uid": bytes(32)}]}),
    ("admin", {"killAllSessions": [{"user": "nobody", "db": "admin"}]}),
    ("admin", {"killAllSessionsByPattern": [{"uid": bytes(32)}]}),
    ("shop", {"nosuch": 1}),
]


@pytest.mark.parametrize("user", [None, *USERS])
def test_verdicts_are_those_of_a_mongod(closed: RunningCluster, plain: Callable[..., Client], user: str | None) -> None:
    with user_of(closed, user) as ours, plain(user) as theirs:
        expected = [(db, command, verdict(theirs, db, command)) for db, command in COMMANDS]
        assert [(db, command, verdict(ours, db, command)) for db, command in COMMANDS] == expected


def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(closed: RunningCluster) -> None:
    for user, mechanism in (("reader", "SCRAM-SHA-256"), ("nobody", "SCRAM-SHA-256"), ("nobody", "SCRAM-SHA-1")):
        options = {"username": user, "password": "wrong", "authMechanism": mechanism}
        with closed.direct("router.0", **options) as client, pytest.raises(OperationFailure) as failure:
            client.admin.command("ping")
        assert (failure.value.code, (failure.value.details or {})["errmsg"]) == (18, "Authentication failed.")


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-1", "SCRAM-SHA-256", "DEFAULT"])
def test_each_mechanism_logs_in(closed: RunningCluster, mechanism: str) -> None:
    with user_of(closed, "reader", authMechanism=mechanism) as client:
        status = client.admin.command("connectionStatus", showPrivileges=True)["authInfo"]
    assert status["authenticatedUsers"] == [{"user": "reader", "db": "admin"}]
    assert {"role": "read", "db": "shop"} in status["authenticatedUserRoles"]
    assert status["authenticatedUserPrivileges"]


def test_a_user_with_one_mechanism_logs_in_by_negotiation(closed: RunningCluster) -> None:
    with closed.client() as root:
        root.admin.command("createUser", "old", pwd=PASSWORD, roles=["root"], mechanisms=["SCRAM-SHA-1"])
    with user_of(closed, "old") as client:
        assert client.shop.goods.find_one() is not None


def test_cursors_belong_to_their_user(closed: RunningCluster) -> None:
    with user_of(closed, "reader") as reader, user_of(closed, "writer") as writer:
        opened = reader.shop.command("find", "goods", batchSize=2)["cursor"]["id"]
        with pytest.raises(OperationFailure, match="was not created by the authenticated user") as refusal:
            writer.shop.command({"getMore": opened, "collection": "goods"})
        assert refusal.value.code == 13
        with pytest.raises(OperationFailure, match="not authorized on shop"):
            writer.shop.command("killCursors", "goods", cursors=[opened])
        assert len(list(reader.shop.goods.find(batch_size=20))) >= 200


def test_a_session_of_another_user_is_another_session(closed: RunningCluster) -> None:
    with user_of(closed, "everyone") as one, user_of(closed, "writer") as other, one.start_session() as session:
        with session.start_transaction():
            one.shop.goods.insert_one({"a": 900}, session=session)
            one.shop.goods.insert_one({"a": -900}, session=session)
            stolen: dict[str, Any] = {"lsid": dict(session.session_id), "txnNumber": 1, "autocommit": False}
            with pytest.raises(OperationFailure):
                other.admin.command("commitTransaction", 1, **stolen)
            mine = other.admin.command("connectionStatus")["authInfo"]["authenticatedUsers"]
            assert mine == [{"user": "writer", "db": "admin"}]
        assert one.shop.goods.count_documents({"a": {"$in": [900, -900]}}) == 2


@pytest.mark.parametrize("user", USERS)
def test_lists_show_what_a_mongod_shows(closed: RunningCluster, plain: Callable[..., Client], user: str) -> None:
    """Databases and collections on which the user may do anything."""
    shown = []
    for client in (user_of(closed, user), plain(user)):
        with client as connected:
            databases = connected.admin.command("listDatabases", nameOnly=True, authorizedDatabases=True)["databases"]
            names = {each["name"] for each in databases} - {"local"}
            query = {"name": {"$in": ["goods", "hidden"]}}
            own = {"listCollections": 1, "nameOnly": True, "authorizedCollections": True, "filter": query}
            with suppress(OperationFailure):
                names |= {each["name"] for each in connected.shop.command(own)["cursor"]["firstBatch"]}
            shown.append(names)
    assert shown[0] == shown[1]


def test_only_its_user_ends_a_session(closed: RunningCluster) -> None:
    """Whoever knows the id of a session has one of the same id, and no other."""
    with (
        user_of(closed, "reader") as reader,
        user_of(closed, "writer") as writer,
        closed.direct("shard0.0.mongod") as mongod,
        reader.start_session() as session,
    ):
        found = reader.shop.goods.find(batch_size=2, session=session)
        next(found)
        ended = [dict(session.session_id)]
        for command in ("endSessions", "killSessions"):
            writer.admin.command(command, ended)
            next(found)
        with pytest.raises(OperationFailure, match="Unauthorized to set user digest in LogicalSessionId"):
            writer.admin.command("endSessions", [{**ended[0], "uid": digest_of("reader")}])
        writer.admin.command("killSessions", [])
        next(found)
        # Not while the router reads a batch ahead.
        eventually(lambda: digest_of("reader") in users_with_cursors(mongod), what="the cursor is idle")
        reader.admin.command("killSessions", [])
        with pytest.raises(OperationFailure) as killed:
            list(found)
        assert killed.value.code == CURSOR_NOT_FOUND
        assert digest_of("reader") not in users_with_cursors(mongod)


def digest_of(user: str) -> bytes:
    """Return the digest of a user in session ids."""
    return sha256(f"{user}@admin".encode()).digest()


def users_with_cursors(mongod: Client) -> set[bytes]:
    """The users who have idle cursors in sessions, by their digests."""
    stage = {"$currentOp": {"allUsers": True, "idleCursors": True}}
    shown = mongod.admin.aggregate([stage, {"$match": {"type": "idleCursor", "lsid": {"$exists": True}}}])
    return {each["lsid"]["uid"] for each in shown}


def test_a_refresh_reaches_the_sessions_of_the_user(closed: RunningCluster) -> None:
    """The cluster refreshes them on the router and on the shards."""
    with user_of(closed, "reader") as reader, closed.direct("shard0.0.mongod") as mongod:
        begun = reader.admin.command("startSession")["id"]["id"]
        reader.admin.command("refreshSessions", [{"id": begun}])
        for server, stage in ((reader, {}), (mongod, {"allUsers": True})):
            listed = server.admin.aggregate([{"$listLocalSessions": stage}, {"$match": {"_id.id": begun}}])
            assert [each["_id"] for each in listed] == [{"id": begun, "uid": digest_of("reader")}]


def test_sessions_have_the_name_of_their_user(closed: RunningCluster) -> None:
    with user_of(closed, "reader") as reader, closed.client() as root:
        begun = reader.admin.command("startSession")["id"]["id"]
        (shown,) = reader.admin.aggregate([{"$listLocalSessions": {}}, {"$match": {"_id.id": begun}}])
        assert shown["user"] == "reader@admin"
        root.admin.command("refreshLogicalSessionCacheNow")
        (shown,) = reader.config["system.sessions"].aggregate([{"$listSessions": {}}, {"$match": {"_id.id": begun}}])
        assert shown["user"] == {"name": "reader@admin"}


def test_a_dropped_user_is_logged_out_at_once(closed: RunningCluster) -> None:
    with closed.client() as root:
        root.shop.command("createUser", "leaving", pwd=PASSWORD, roles=["read"])
        with user_of(closed, "leaving", authSource="shop") as client:
            assert client.shop.goods.find_one() is not None
            root.shop.command("revokeRolesFromUser", "leaving", roles=["read"])
            assert verdict(client, "shop", {"find": "goods"}) == "not authorized on shop"
            root.shop.command("dropUser", "leaving")
            assert verdict(client, "shop", {"find": "goods"}) == "command find requires authentication"


SIDEWAYS: Final[list[dict[str, Any]]] = [
    {"_shardsvrMoveRange": "shop.goods"},
    {"_configsvrBalancerStop": 1},
    {"_flushRoutingTableCacheUpdates": "shop.goods"},
    {"configureFailPoint": "failCommand", "mode": "off"},
    {"testDeprecationInVersion2": 1},
    {"find": "goods", "shardVersion": {"e": 1}},
    {"find": "goods", "databaseVersion": {}},
    {"aggregate": "goods", "pipeline": [{"$mergeCursors": {}}], "cursor": {}},
    {"aggregate": "goods", "pipeline": [{"$facet": {"x": [{"$_internalSplitPipeline": {}}]}}], "cursor": {}},
    {"createUser": "intruder", "pwd": "p", "roles": ["root"]},
    {"getParameter": "*"},
]


@pytest.mark.parametrize("process", ["shard0.0.shardd", "config.0.configd"])
def test_a_daemon_reached_sideways_is_closed(closed: RunningCluster, process: str) -> None:
    """To strangers and to users of its mongod, who may find documents."""
    with closed.direct(process) as system:
        system.admin.command("createUser", "local", pwd=PASSWORD, roles=["readWriteAnyDatabase"])
    with user_of(closed, None, process) as stranger, user_of(closed, "local", process) as local:
        for command in SIDEWAYS:
            assert verdict(stranger, "admin", command) == f"command {next(iter(command))} requires authentication"
            assert verdict(local, "admin", command) == "not authorized on admin", command
        assert verdict(local, "shop", {"find": "goods"}) == "allowed"
        assert verdict(stranger, "admin", {"ping": 1}) == "allowed"


def test_secrets_are_private_and_in_no_log(closed: RunningCluster) -> None:
    access = closed.document["auth"]
    secrets = [Path(access[name]) for name in ("keyFile", "passwordFile")]
    assert [S_IMODE(path.stat().st_mode) for path in secrets] == [0o600, 0o600]
    with suppress(PyMongoError), closed.direct("router.0", username="reader", password="guessed-in-vain") as client:
        client.admin.command("ping")
    hidden = [*(path.read_text() for path in secrets), PASSWORD, "guessed-in-vain"]
    for log in (closed.directory / "logs").iterdir():
        text = log.read_text(errors="replace")
        assert [each for each in hidden if each in text] == [], log.name
    with closed.client() as root, ExitStack() as stack:
        shown = [stack.enter_context(closed.direct("shard0.0.shardd")), root]
        for client in shown:
            options = str(client.admin.command("getCmdLineOpts"))
            assert [each for each in hidden if each in options] == []


def test_chunks_move_and_transactions_commit(closed: RunningCluster) -> None:
    with closed.client() as root, user_of(closed, "writer") as writer:
        root.admin.command("split", "shop.goods", middle={"a": 100})
        (database,) = root.config.databases.find({"_id": "shop"})
        to = next(name for name in closed.shards if name != database["primary"])
        root.admin.command("moveChunk", "shop.goods", find={"a": 150}, to=to)
        with writer.start_session() as session, session.start_transaction():
            writer.shop.goods.update_one({"a": 1}, {"$set": {"t": 1}}, session=session)
            writer.shop.goods.update_one({"a": 150}, {"$set": {"t": 1}}, session=session)
            grouped = writer.shop.goods.aggregate([{"$group": {"_id": "$t", "n": {"$sum": 1}}}], session=session)
            assert {each["_id"]: each["n"] for each in grouped}[1] == 2
        assert writer.shop.goods.count_documents({"t": 1}) == 2


def test_a_mongod_reached_directly_has_no_localhost_exception(closed: RunningCluster) -> None:
    with connect(closed.address("shard1.0.mongod")) as stranger:
        assert verdict(stranger, "admin", {"createUser": "x", "pwd": "p", "roles": ["root"]}) == (
            "command createUser requires authentication"
        )
