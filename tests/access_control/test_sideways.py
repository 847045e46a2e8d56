"""Users who connect to a shard daemon or a config daemon: the verdicts and the words of a mongod.

They are users of that replica set, which its mongod knows.
"""

import json
from pathlib import Path
from time import monotonic
from typing import Any, Final

import pytest
from bson import Int64, Timestamp, json_util
from bson.json_util import JSONOptions

from shardwright.daemon.sidecar.access import INTERNAL_COMMANDS
from tests.access_control.conftest import AUDIT, PlainMongod
from tests.access_control.documents import with_fields
from tests.access_control.test_hazardous_updates import HAZARDS, merges, updates
from tests.access_control.test_matrix import AS_ON_MONGOD, EVERYBODY, SESSION, Command, aggregate
from tests.access_control.users import PASSWORD, SYSTEM, LogIn, create_users, identified
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.waiting import eventually
from tests.local_cluster import RunningCluster

DAEMONS: Final = ("shard0.0.shardd", "config.0.configd")
_CHIEFS: Final = ("chief", SYSTEM)

_LOG_INS: Final = frozenset({"authenticate", "saslContinue", "saslStart"})
"""Three that fail end the connection."""

_ENDING: Final = frozenset({"shutdown", "replSetStepDown"})
_OF_SERVERS: Final = frozenset({"_killOperations"})

AS_ON_A_MEMBER: Final[list[tuple[str, Command]]] = [
    ("admin", {"replSetGetConfig": 1}),
    ("admin", {"replSetFreeze": 0}),
    ("admin", {"replSetStepDown": -1}),
    ("admin", {"applyOps": []}),
    ("admin", {"applyOps": [{"op": "i", "ns": "shop.nix", "o": {"_id": 1}}]}),
    ("shop", {"dbHash": 1}),
    ("admin", {"top": 1}),
    ("shop", {"top": 1}),
    ("admin", {"lockInfo": 1}),
    ("admin", {"shardingState": 1}),
    ("admin", {"cleanupOrphaned": "shop.nix"}),
    ("shop", {"cleanupOrphaned": "shop.nix"}),
    ("admin", {"getShardVersion": "shop.goods"}),
    ("shop", {"getShardVersion": "shop.goods"}),
    ("shop", {"currentOp": 1}),
    ("shop", {"killOp": 1, "op": 1}),
    ("shop", {"getParameter": 1, "quiet": 1}),
    ("shop", {"setParameter": 1, "quiet": False}),
    ("shop", {"setFeatureCompatibilityVersion": "6.0"}),
    ("local", {"find": "oplog.rs", "limit": 1}),
    ("admin", {"find": "system.keys"}),
    ("config", {"find": "transactions"}),
    ("shop", {"listCollections": 1}),
    ("shop", {"find": "system.profile", "lsid": SESSION}),
    ("admin", aggregate({"$currentOp": {}}, about=1)),
    ("admin", {"currentOp": 1, "$ownOps": True}),
    ("shop", {"currentOp": 1, "$ownOps": True}),
    ("admin", {"currentOp": 1, "$ownOps": False}),
    ("admin", aggregate({"$listLocalSessions": {"allUsers": True}}, about=1)),
]

_NAMES: Final = sorted(
    {
        *(INTERNAL_COMMANDS - {"getDatabaseVersion", "moveChunk"}),
        *("_addShard", "_configsvrAddShard", "_configsvrCollMod", "_configsvrMoveChunk", "_flushDatabaseCacheUpdates"),
        *("_flushRoutingTableCacheUpdates", "_getNextSessionMods", "_getUserCacheGeneration", "_migrateClone"),
        *("_recvChunkAbort", "_recvChunkCommit", "_recvChunkStart", "_recvChunkStatus", "_transferMods"),
        *("_shardsvrCloneCatalogData", "_shardsvrCreateCollection", "_shardsvrDropCollection", "_shardsvrMoveRange"),
        *("_shardsvrDropDatabaseParticipant", "_shardsvrParticipantBlock", "_shardsvrRenameCollection"),
        *("_shardsvrJoinMigrations", "_configsvrBalancerStop", "_configsvrRemoveShard", "_killOperations"),
    }
)


@pytest.fixture(scope="module")
def sideways(closed: RunningCluster) -> RunningCluster:
    """The cluster, whose replica sets have users of their own."""
    for process in DAEMONS:
        with closed.direct(process) as system:
            create_users(system)
    return closed


def verdict(raw: RawClient, db: str, command: Command) -> str:
    """The text if access control refuses a command."""
    reply = raw.command(command, db=db)
    return str(reply["errmsg"]) if reply.get("code") == 13 else "allowed"


def key_of(cluster: RunningCluster) -> str:
    """The key of the cluster."""
    return Path(cluster.document["auth"]["keyFile"]).read_text()


@pytest.mark.parametrize("name", HAZARDS)
def test_no_user_ends_a_shard_by_a_pipeline(sideways: RunningCluster, name: str) -> None:
    stage = HAZARDS[name]
    aggregates = [aggregate(stage), {"explain": aggregate(stage)}] if "join" in name or name == "graph" else []
    with identified(sideways.address("shard0.0.shardd"), "writer", key_of(sideways)) as client:
        for command in (*updates(stage), *merges(stage), *aggregates):
            reply = client.command(command, db="shop")
            assert reply["ok"] == 0, command
            assert reply["code"] in (13, 40413), reply
        assert client.command({"count": "goods"}, db="shop")["ok"] == 1


@pytest.mark.matrix(share=0.4)
@pytest.mark.parametrize("process", DAEMONS)
@pytest.mark.parametrize("user", EVERYBODY)
def test_verdicts_are_those_of_a_mongod(
    sideways: RunningCluster, plain: PlainMongod, process: str, user: str | None
) -> None:
    differing = []
    with (
        identified(sideways.address(process), user, key_of(sideways)) as ours,
        identified(plain.address, user, plain.key) as theirs,
    ):
        for db, command in (*AS_ON_MONGOD, *AS_ON_A_MEMBER):
            name = next(iter(command))
            if name in _LOG_INS or name in _OF_SERVERS or (user in _CHIEFS and name in _ENDING):
                continue
            seen, expected = verdict(ours, db, command), verdict(theirs, db, command)
            if seen != expected:
                differing.append((db, command, seen, expected))
    assert differing == []


@pytest.mark.parametrize("process", DAEMONS)
@pytest.mark.parametrize("user", [None, "writer", "chief"])
def test_commands_of_servers_are_refused_in_the_order_of_mongod(
    sideways: RunningCluster, plain: PlainMongod, process: str, user: str | None
) -> None:
    """First the database, then the log-in, then the privileges."""
    with (
        identified(sideways.address(process), user, key_of(sideways)) as ours,
        identified(plain.address, None, plain.key) as stranger,
    ):
        for name in _NAMES:
            for db in ("admin", "shop"):
                refused = ours.command({name: 1}, db=db)
                assert refused["code"] == 13, (name, db, refused)
                if refused["errmsg"] == f"{name} may only be run against the admin database.":
                    assert db == "shop"
                    assert stranger.command({name: 1}, db=db)["errmsg"] == refused["errmsg"]
                elif user is None:
                    assert refused["errmsg"] == f"command {name} requires authentication"
                else:
                    shown = f'{{ {name}: 1, $db: "{db}" }}'
                    assert refused["errmsg"] == f"not authorized on {db} to execute command {shown}"


FIELDS: Final[list[tuple[str, Any]]] = [
    ("shardVersion", {"t": Timestamp(0, 0), "v": Timestamp(0, 0)}),
    ("databaseVersion", {}),
    ("involvedNamespaces", []),
    ("$configTime", Timestamp(1, 1)),
    ("$topologyTime", Timestamp(1, 1)),
    ("$replData", 1),
    ("coordinator", True),
    ("fromMongos", True),
    ("needsMerge", True),
    ("exchange", {}),
    ("runtimeConstants", {}),
    ("fromMigrate", True),
    ("mayBypassWriteBlocking", True),
    ("traceContext", "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"),
    ("$audit", {"$impersonatedUsers": [], "$impersonatedRoles": []}),
]


@pytest.mark.parametrize("process", DAEMONS)
def test_fields_of_servers_are_refused_to_all_users(sideways: RunningCluster, process: str) -> None:
    for user in (None, "writer", "chief"):
        with identified(sideways.address(process), user, key_of(sideways)) as raw:
            for name, value in FIELDS:
                for command in ({"ping": 1}, {"find": "goods"}, {"insert": "goods", "documents": [{}]}):
                    refused = raw.command({**command, name: value}, db="shop")
                    assert refused.get("code") == 13, (user, name, command, refused)


STAGES: Final[list[Command]] = [
    aggregate({"$mergeCursors": {"remotes": [], "sort": {}}}),
    aggregate({"$facet": with_fields(("x", [{"$group": {"_id": 1, "$doingMerge": True}}]), ("x", []))}),
    {"explain": aggregate({"$_internalInhibitOptimization": {}})},
    {"create": "v", "viewOn": "goods", "pipeline": [{"$queue": []}]},
]


@pytest.mark.parametrize("process", DAEMONS)
def test_stages_of_servers_are_refused_to_root(sideways: RunningCluster, process: str) -> None:
    with identified(sideways.address(process), "chief", key_of(sideways)) as raw:
        for command in STAGES:
            assert verdict(raw, "shop", command).startswith("not authorized on shop to execute command"), command


@pytest.mark.parametrize("process", [*DAEMONS, "router.0"])
@pytest.mark.parametrize("user", [None, "writer", "chief"])
def test_who_says_to_be_a_server_is_none(sideways: RunningCluster, process: str, user: str | None) -> None:
    introduction = {"hello": 1, "internalClient": {"minWireVersion": Int64(0), "maxWireVersion": Int64(17)}}
    with raw_client(sideways.address(process)) as raw:
        raw.command(introduction)
        if user is not None:
            LogIn(raw, user).complete()
        for command in ({"find": "goods", FIELDS[0][0]: FIELDS[0][1]}, STAGES[0]):
            assert raw.command(command, db="shop")["code"] == 13, command
        unknown_to_routers = 59 if process == "router.0" else 13
        assert raw.command({"_shardsvrDropCollection": "goods"}, db="shop")["code"] == unknown_to_routers


FORGED: Final = '\n{"t":"now","s":"I","msg":"forged"}\n\x1b[2J'


@pytest.mark.parametrize("process", [*DAEMONS, "router.0"])
def test_what_strangers_send_neither_forges_nor_floods_the_log(sideways: RunningCluster, process: str) -> None:
    known = len(sideways.log(process).splitlines())
    long = FORGED + "x" * 12_000
    with raw_client(sideways.address(process)) as raw:
        raw.command({"hello": 1, "client": {"application": {"name": FORGED}, "driver": {"name": FORGED}}})
        raw.command({long: 1})
        raw.command({"saslStart": 1, "mechanism": long, "payload": b""})
    for name in (FORGED, long):
        with raw_client(sideways.address(process)) as raw:
            log_in = LogIn(raw, name)
            reply = log_in.start()
            if reply["ok"]:
                log_in.go_on(log_in.proof(reply["payload"]))
            raw.command({"authenticate": 1, "mechanism": "MONGODB-X509", "user": name}, db="$external")
    lines = sideways.log(process).splitlines()[known:]
    assert all(json.loads(line)["msg"] != "forged" for line in lines)
    assert all(len(line) < LINE_MAX and line.isprintable() for line in lines)


LINE_MAX: Final = 2_000


Told = tuple[str, int, dict[str, Any]]


def audit_files(cluster: RunningCluster, process: str) -> list[Path]:
    """Return the audit log of a daemon, and the rotated ones."""
    return sorted(cluster.directory.glob(f"{AUDIT[process.rpartition('.')[2]]}*"))


def audited(cluster: RunningCluster, process: str, raw: RawClient) -> list[dict[str, Any]]:
    """The events of a connection, which may be in a file that was rotated since."""
    address = {"ip": "127.0.0.1", "port": raw.socket.getsockname()[1]}
    opened = raw.opened.replace(microsecond=raw.opened.microsecond // 1000 * 1000)  # events tell no microseconds
    lines = [line for file in audit_files(cluster, process) for line in file.read_text().splitlines()]
    events: list[dict[str, Any]] = [json_util.loads(line, json_options=JSONOptions(tz_aware=True)) for line in lines]
    return [event for event in events if event["remote"] == address and event["ts"] >= opened]


def told(cluster: RunningCluster, process: str, raw: RawClient) -> list[Told]:
    """Return the audited events of a connection."""
    return [(each["atype"], each["result"], each["param"]) for each in audited(cluster, process, raw)]


@pytest.mark.parametrize("process", DAEMONS)
def test_the_audit_log_tells_what_users_do(sideways: RunningCluster, process: str) -> None:
    chief_user, index = {"user": "chief", "db": "admin"}, {"key": {"a": 1}, "name": "a_1"}
    internal = {"_shardsvrDropCollection": "audited"}
    with identified(sideways.address(process), "chief", key_of(sideways)) as chief:
        for command in (
            {"create": "audited"},
            {"createIndexes": "audited", "indexes": [index]},
            {"drop": "audited"},
            {"createUser": "late", "pwd": "secret", "roles": ["nonsense"]},
            internal,
        ):
            chief.command(command, db="shop")
        merge = {"_mergeAuthzCollections": 1, "tempUsersCollection": "", "tempRolesCollection": "admin.temproles"}
        assert chief.command({**merge, "db": "shop", "drop": False}, db="admin")["ok"]
        chief.command({"logout": 1}, db="admin")
        refused = {"command": "_shardsvrDropCollection", "ns": "shop.audited", "args": internal}
        reason = "Client has explicitly logged out from 'admin'"
        assert told(sideways, process, chief) == [
            ("authenticate", 0, {**chief_user, "mechanism": "SCRAM-SHA-256"}),
            ("createCollection", 0, {"ns": "shop.audited"}),
            ("createIndex", 0, {"ns": "shop.audited", "indexName": "a_1", "indexSpec": index}),
            ("dropCollection", 0, {"ns": "shop.audited"}),
            ("createUser", 31, {"user": "late", "db": "shop", "roles": ["nonsense"]}),
            ("authCheck", 13, refused),
            ("directAuthMutation", 0, {"ns": "admin.system.roles", "operation": "command"}),
            ("logout", 0, {"reason": reason, "initialUsers": [chief_user], "updatedUsers": []}),
        ]
        assert {"role": "root", "db": "admin"} in audited(sideways, process, chief)[0]["roles"]


@pytest.mark.parametrize("process", DAEMONS)
def test_the_audit_log_tells_of_members_only_who_is_none(sideways: RunningCluster, process: str) -> None:
    address, key = sideways.address(process), key_of(sideways)
    with identified(address, SYSTEM, key) as member, raw_client(address) as stranger:
        member.command({"drop": "missing"}, db="shop")
        guess = LogIn(stranger, SYSTEM, password="guessed", db="local")
        assert guess.go_on(guess.proof(guess.start()["payload"]))["code"] == 18
        assert told(sideways, process, member) == []
        assert told(sideways, process, stranger) == [
            ("authenticate", 18, {"user": SYSTEM, "db": "local", "mechanism": "SCRAM-SHA-256"})
        ]


@pytest.mark.parametrize("process", DAEMONS)
def test_the_audit_log_is_rotated_by_whom_the_mongod_lets(sideways: RunningCluster, process: str) -> None:
    """The mongod has no audit log itself."""
    files = audit_files(sideways, process)
    rotate = {"logRotate": "audit"}
    with identified(sideways.address(process), "writer", key_of(sideways)) as writer:
        assert writer.command(rotate)["code"] == 13
        assert [each[0] for each in told(sideways, process, writer)] == ["authenticate", "authCheck"]
    assert audit_files(sideways, process) == files
    with identified(sideways.address(process), "chief", key_of(sideways)) as chief:
        # Another test may have had it rotated within the same second.
        eventually(lambda: chief.command(rotate)["ok"], what="the audit log is rotated")
    assert len(audit_files(sideways, process)) == len(files) + 1


@pytest.mark.parametrize("process", DAEMONS)
def test_guesses_become_slow_at_daemons_too(sideways: RunningCluster, process: str) -> None:
    def guess(user: str, password: str) -> tuple[bool, float]:
        with raw_client(sideways.address(process)) as raw:
            log_in = LogIn(raw, user, password=password)
            proof = log_in.proof(log_in.start()["payload"])
            began = monotonic()
            reply = log_in.go_on(proof)
            return bool(reply["ok"]), monotonic() - began

    for _ in range(8):
        assert not guess("watcher", "wrong")[0]
    has_succeeded, seconds = guess("watcher", PASSWORD)
    assert has_succeeded  # nobody can lock a user out
    assert seconds >= 0.8
