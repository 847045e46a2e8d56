"""Each command of the router in the name of each kind of user, compared with a mongod: the same verdicts and texts.

The effect of an allowed command does not matter here, so most commands name collections that do not exist. Commands
that only a router has are compared with MongoDB's documentation of the roles.
"""

from pathlib import Path
from typing import Any, Final
from uuid import UUID

import pytest
from bson import Binary, Int64

from shardwright.router.commands.router_commands import ROUTER_COMMANDS
from tests.access_control.conftest import PlainMongod
from tests.access_control.users import CUSTOM_ROLE, PASSWORD, SYSTEM, USERS, identified
from tests.integration.raw_client import RawClient
from tests.local_cluster import RunningCluster

Command = dict[str, Any]

SESSION: Final = {"id": Binary(UUID(int=5).bytes, 4)}
IN_TRANSACTION: Final = {"lsid": SESSION, "txnNumber": Int64(1), "autocommit": False}
PRIVILEGE: Final = {"resource": {"db": "scratch", "collection": ""}, "actions": ["find"]}


def aggregate(*stages: Command, about: str | int = "goods") -> Command:
    """An aggregation."""
    return {"aggregate": about, "pipeline": list(stages), "cursor": {}}


AS_ON_MONGOD: Final[list[tuple[str, Command]]] = [
    ("shop", {"find": "goods", "limit": 1}),
    ("other", {"find": "secret"}),
    ("shop", {"find": "system.profile"}),
    ("shop", {"count": "goods"}),
    ("shop", {"distinct": "goods", "key": "a"}),
    ("shop", {"dataSize": "shop.goods"}),
    ("shop", {"filemd5": 1, "root": "fs"}),
    ("shop", {"insert": "nowhere", "documents": [{"a": 1}]}),
    ("shop", {"insert": "nowhere", "documents": [{"a": 1}], "bypassDocumentValidation": True}),
    ("other", {"insert": "nowhere", "documents": [{"a": 1}]}),
    ("shop", {"update": "goods", "updates": [{"q": {"a": -1}, "u": {"$set": {"b": 1}}}]}),
    ("shop", {"update": "nowhere", "updates": [{"q": {"a": -1}, "u": {"$set": {"b": 1}}, "upsert": True}]}),
    ("shop", {"delete": "goods", "deletes": [{"q": {"a": -1}, "limit": 1}]}),
    ("shop", {"findAndModify": "goods", "query": {"a": -1}, "update": {"$set": {"b": 1}}}),
    ("shop", {"findAndModify": "nowhere", "query": {"a": -1}, "update": {"$set": {"b": 1}}, "upsert": True}),
    ("shop", {"findAndModify": "goods", "query": {"a": -1}, "remove": True}),
    ("shop", {"explain": {"find": "goods"}}),
    ("shop", {"explain": {"delete": "goods", "deletes": [{"q": {"a": -1}, "limit": 1}]}}),
    ("shop", aggregate()),
    ("shop", aggregate({"$limit": 1}, {"$out": "nowhere"})),
    ("shop", aggregate({"$limit": 1}, {"$merge": {"into": "nowhere", "whenMatched": "fail"}})),
    ("shop", aggregate({"$limit": 1}, {"$merge": {"into": "goods", "whenNotMatched": "discard"}})),
    ("shop", aggregate({"$lookup": {"from": "plain", "pipeline": [], "as": "x"}}, {"$limit": 1})),
    ("shop", aggregate({"$graphLookup": {"from": "plain", "startWith": 1, "connectFromField": "a",
                                         "connectToField": "a", "as": "x"}}, {"$limit": 1})),
    ("shop", aggregate({"$unionWith": "plain"}, {"$limit": 1})),
    ("shop", aggregate({"$facet": {"x": [{"$unionWith": "plain"}]}})),
    ("shop", aggregate({"$collStats": {"count": {}}})),
    ("shop", aggregate({"$indexStats": {}})),
    ("shop", aggregate({"$planCacheStats": {}})),
    ("shop", aggregate({"$listCatalog": {}})),
    ("shop", aggregate({"$changeStream": {}})),
    ("shop", aggregate({"$changeStream": {}}, about=1)),
    ("admin", aggregate({"$changeStream": {"allChangesForCluster": True}}, about=1)),
    ("shop", aggregate({"$documents": [{"a": 1}]}, about=1)),
    ("admin", aggregate({"$currentOp": {"allUsers": True}}, about=1)),
    ("admin", aggregate({"$currentOp": {"localOps": True}}, about=1)),
    ("admin", aggregate({"$currentOp": {"localOps": True, "allUsers": False, "idleCursors": True}}, about=1)),
    ("admin", aggregate({"$currentOp": {"localOps": True, "allUsers": True}}, about=1)),
    ("config", aggregate({"$listSessions": {"allUsers": True}}, about="system.sessions")),
    ("shop", {"mapReduce": "goods", "map": "function(){}", "reduce": "function(){}", "out": {"merge": "nowhere"}}),
    ("shop", {"create": "nowhere"}),
    ("shop", {"create": "capped", "capped": True, "size": 1000}),
    ("shop", {"create": "a_view", "viewOn": "plain", "pipeline": []}),
    ("shop", {"create": "b_view", "viewOn": "system.profile", "pipeline": []}),
    ("shop", {"collMod": "nix"}),
    ("shop", {"drop": "nix"}),
    ("scratch", {"dropDatabase": 1}),
    ("shop", {"dbStats": 1}),
    ("shop", {"collStats": "goods"}),
    ("shop", {"validate": "nix"}),
    ("shop", {"compact": "nix"}),
    ("shop", {"convertToCapped": "nix", "size": 1000}),
    ("shop", {"compactStructuredEncryptionData": "nix", "compactionTokens": {}}),
    ("shop", {"createIndexes": "nowhere", "indexes": [{"key": {"b": 1}, "name": "b_1"}]}),
    ("other", {"createIndexes": "nowhere", "indexes": [{"key": {"b": 1}, "name": "b_1"}]}),
    ("shop", {"dropIndexes": "nix", "index": "b_1"}),
    ("shop", {"listIndexes": "goods"}),
    ("shop", {"setIndexCommitQuorum": "nix", "indexNames": ["b_1"], "commitQuorum": 1}),
    ("shop", {"splitVector": "shop.nix", "keyPattern": {"a": 1}, "maxChunkSizeBytes": 1024}),
    ("admin", {"renameCollection": "shop.nix", "to": "shop.nix2"}),
    ("admin", {"renameCollection": "shop.nix", "to": "other.nix2"}),
    ("admin", {"renameCollection": "shop.nix", "to": "shop.nix2", "dropTarget": True}),
    ("shop", {"planCacheClear": "goods"}),
    ("shop", {"planCacheListFilters": "goods"}),
    ("shop", {"planCacheClearFilters": "goods"}),
    ("shop", {"planCacheSetFilter": "goods", "query": {"a": 1}, "indexes": ["a_1"]}),
    ("shop", {"validateDBMetadata": 1, "apiParameters": {"version": "1"}}),
    ("admin", {"validateDBMetadata": 1, "db": "shop", "apiParameters": {"version": "1"}}),
    ("shop", {"profile": -1}),
    ("shop", {"profile": 0}),
    ("admin", {"setProfilingFilterGlobally": 1, "filter": "unset"}),
    ("shop", {"killCursors": "goods", "cursors": [Int64(1)]}),
    ("shop", {"getMore": Int64(1), "collection": "goods"}),
    ("admin", {"killAllSessions": [{"user": "x", "db": "y"}]}),
    ("admin", {"startSession": 1}),
    ("admin", {"endSessions": [SESSION]}),
    ("admin", {"refreshSessions": [SESSION]}),
    ("admin", {"commitTransaction": 1, **IN_TRANSACTION}),
    ("admin", {"abortTransaction": 1, **IN_TRANSACTION}),
    ("shop", {"createUser": "u", "pwd": "p", "roles": []}),
    ("shop", {"createUser": "u", "pwd": "p", "roles": [{"role": "read", "db": "other"}]}),
    ("shop", {"updateUser": "u", "pwd": "p"}),
    ("shop", {"updateUser": "u", "customData": {"a": 1}}),
    ("shop", {"updateUser": "u", "roles": ["read"]}),
    ("shop", {"dropUser": "u"}),
    ("scratch", {"dropAllUsersFromDatabase": 1}),
    ("shop", {"grantRolesToUser": "u", "roles": ["read"]}),
    ("shop", {"revokeRolesFromUser": "u", "roles": ["read"]}),
    ("shop", {"usersInfo": {"user": "u", "db": "shop"}}),
    ("shop", {"usersInfo": 1}),
    ("shop", {"usersInfo": {"forAllDBs": True}}),
    ("shop", {"rolesInfo": "r"}),
    ("admin", {"rolesInfo": CUSTOM_ROLE}),
    ("admin", {"rolesInfo": {"forAllDBs": True}}),
    ("scratch", {"rolesInfo": {"role": "r", "db": "scratch"}}),
    ("shop", {"createRole": "r", "privileges": [], "roles": ["read"]}),
    ("scratch", {"createRole": "r", "privileges": [PRIVILEGE], "roles": []}),
    ("shop", {"updateRole": "r", "roles": []}),
    ("shop", {"dropRole": "r"}),
    ("scratch", {"dropAllRolesFromDatabase": 1}),
    ("shop", {"grantRolesToRole": "r", "roles": ["read"]}),
    ("shop", {"revokeRolesFromRole": "r", "roles": ["read"]}),
    ("scratch", {"grantPrivilegesToRole": "r", "privileges": [PRIVILEGE]}),
    ("scratch", {"revokePrivilegesFromRole": "r", "privileges": [PRIVILEGE]}),
    ("admin", {"invalidateUserCache": 1}),
    ("admin", {"_mergeAuthzCollections": 1, "tempUsersCollection": "admin.nix", "tempRolesCollection": "", "db": "",
               "drop": False}),
    ("admin", {"serverStatus": 1}),
    ("admin", {"connPoolStats": 1}),
    ("admin", {"connPoolSync": 1}),
    ("admin", {"dropConnections": 1, "hostAndPort": []}),
    ("admin", {"flushRouterConfig": 1}),
    ("admin", {"fsync": 1}),
    ("admin", {"getCmdLineOpts": 1}),
    ("admin", {"getDefaultRWConcern": 1}),
    ("admin", {"setDefaultRWConcern": 1}),
    ("admin", {"getClusterParameter": "changeStreamOptions"}),
    ("admin", {"setClusterParameter": {"nix": {"a": 1}}}),
    ("admin", {"getDiagnosticData": 1}),
    ("admin", {"getLog": "global"}),
    ("admin", {"getParameter": 1, "quiet": 1}),
    ("admin", {"setParameter": 1, "quiet": False}),
    ("admin", {"getShardMap": 1}),
    ("admin", {"getShardVersion": "shop.nix"}),
    ("admin", {"hostInfo": 1}),
    ("admin", {"killOp": 1, "op": 999_999}),
    ("admin", {"killOp": 1, "op": Int64(999_999)}),
    ("admin", {"killOp": 1, "op": 999_999.0}),
    ("admin", {"killOp": 1, "op": 0.5}),
    ("admin", {"killOp": 1, "op": Int64(1 << 40)}),
    ("admin", {"killOp": 1, "op": "shard0:999999"}),
    ("admin", {"killOp": 1, "op": True}),
    ("admin", {"killOp": 1}),
    ("admin", {"currentOp": 1, "$all": True}),
    ("admin", {"logRotate": "audit"}),
    ("admin", {"replSetGetStatus": 1}),
    ("admin", {"rotateCertificates": 1}),
    ("admin", {"setFeatureCompatibilityVersion": "9.9"}),
    ("admin", {"setFreeMonitoring": 1, "action": "disable"}),
    ("admin", {"setUserWriteBlockMode": 1, "global": False}),
    ("admin", {"appendOplogNote": 1, "data": {"a": 1}}),
    ("admin", {"startRecordingTraffic": 1, "filename": "/nowhere/x"}),
    ("admin", {"stopRecordingTraffic": 1}),
    ("admin", {"shutdown": 1}),
    ("shop", {"features": 1}),
    ("shop", {"features": 1, "oidReset": True}),
    ("shop", {"availableQueryOptions": 1}),
    ("shop", {"logout": 1}),
    ("shop", {"ping": 1}),
    ("shop", {"hello": 1}),
    ("shop", {"isMaster": 1}),
    ("shop", {"buildInfo": 1}),
    ("shop", {"connectionStatus": 1}),
    ("shop", {"listCommands": 1}),
    ("shop", {"whatsmyuri": 1}),
    ("shop", {"getLastError": 1}),
    ("shop", {"getnonce": 1}),
    ("shop", {"_isSelf": 1}),
    ("shop", {"saslStart": 1, "mechanism": "PLAIN", "payload": b""}),
    ("shop", {"saslContinue": 1, "conversationId": 1, "payload": b""}),
    ("shop", {"authenticate": 1, "mechanism": "MONGODB-X509"}),
    ("shop", {"_hashBSONElement": 1}),
    ("shop", {"serverStatus": 1, "nosuchfield": 1}),
    ("shop", {"shutdown": 1}),
    ("shop", {"nosuch": 1}),
    ("shop", {"listDatabases": 1}),
    ("admin", {"listDatabases": 1}),
    ("admin", {"listDatabases": 1, "authorizedDatabases": True}),
    ("admin", {"listDatabases": 1, "authorizedDatabases": False}),
    ("admin", {"listDatabases": 1, "authorizedDatabases": None}),
    ("shop", {"listCollections": 1}),
    ("shop", {"listCollections": 1, "nameOnly": True, "authorizedCollections": True}),
    ("other", {"listCollections": 1, "nameOnly": True, "authorizedCollections": True}),
    ("admin", {"killSessions": []}),
    ("admin", {"killSessions": [SESSION]}),
    ("admin", {"killSessions": [{**SESSION, "uid": bytes(32)}]}),
    ("admin", {"killAllSessionsByPattern": [{"uid": bytes(32)}]}),
    ("shop", {"killAllSessionsByPattern": [{"lsid": {**SESSION, "uid": bytes(32)}}]}),
]  # fmt: skip

_RULERS: Final = frozenset({"manager", "chief", SYSTEM})
_WATCHERS: Final = _RULERS | {"watcher"}
_USERS: Final = frozenset({*USERS, SYSTEM})
_CHIEFS: Final = frozenset({"chief", SYSTEM})
_OWN: Final = [{"$currentOp": {"localOps": True}}]

# A mongod runs test commands for everybody, even before a log-in; the last five end it. It has another error than
# Unauthorized for _killOperations.
OF_ROUTERS: Final[list[tuple[str, Command, frozenset[str]]]] = [
    ("admin", {"addShard": "x/"}, _RULERS),
    ("admin", {"removeShard": "nix"}, _RULERS),
    ("admin", {"listShards": 1}, _WATCHERS),
    ("admin", {"netstat": 1}, _CHIEFS | {"watcher"}),
    ("admin", {"enableSharding": "scratch"}, _RULERS),
    ("admin", {"shardCollection": "shop.nix", "key": {"a": 7}}, _RULERS),
    ("admin", {"refineCollectionShardKey": "shop.nix", "key": {"a": 1, "b": 1}}, _RULERS),
    ("admin", {"reshardCollection": "shop.nix", "key": {"b": 1}}, _RULERS),
    ("admin", {"abortReshardCollection": "shop.nix"}, _RULERS),
    ("admin", {"commitReshardCollection": "shop.nix"}, _RULERS),
    ("admin", {"cleanupReshardCollection": "shop.nix"}, _RULERS),
    ("admin", {"movePrimary": "nix", "to": "nix"}, _RULERS),
    ("admin", {"moveChunk": "shop.nix", "find": {"a": 1}, "to": "nix"}, _RULERS),
    ("admin", {"moveRange": "shop.nix", "min": {"a": 1}, "toShard": "nix"}, _RULERS),
    ("admin", {"setAllowMigrations": "shop.nix", "allowMigrations": True}, _RULERS),
    ("admin", {"split": "shop.nix", "middle": {"a": 1}}, _RULERS),
    ("admin", {"mergeChunks": "shop.nix", "bounds": [{"a": 1}, {"a": 2}]}, _RULERS),
    ("admin", {"repairShardedCollectionChunksHistory": "shop.nix"}, _RULERS),
    ("admin", {"clearJumboFlag": "shop.nix", "find": {"a": 1}}, _RULERS),
    ("admin", {"configureCollectionBalancing": "shop.nix", "chunkSize": 1}, _RULERS),
    ("admin", {"balancerCollectionStatus": "shop.nix"}, _RULERS),
    ("admin", {"balancerStart": 1, "maxTimeMS": 1}, _RULERS),
    ("admin", {"balancerStop": 1}, _RULERS),
    ("admin", {"balancerStatus": 1}, _WATCHERS),
    ("admin", {"finishUpgrade": 1, "dryRun": True}, _RULERS),
    ("admin", {"balancerExplain": 1}, _WATCHERS),
    ("admin", {"addShardToZone": "nix", "zone": "z"}, _RULERS),
    ("admin", {"removeShardFromZone": "nix", "zone": "z"}, _RULERS),
    ("admin", {"updateZoneKeyRange": "shop.nix", "min": {"a": 1}, "max": {"a": 2}, "zone": "z"}, _RULERS),
    ("shop", {"checkMetadataConsistency": "goods"}, _CHIEFS | {"designer"}),
    ("shop", {"checkMetadataConsistency": 1}, _CHIEFS | {"designer"}),
    ("admin", {"checkMetadataConsistency": 1}, _WATCHERS),
    ("admin", aggregate({"$currentOp": {}}, about=1), _CHIEFS | {"watcher"}),
    ("admin", aggregate({"$currentOp": {"localOps": False}}, about=1), _CHIEFS | {"watcher"}),
    ("admin", {"currentOp": 1, "$ownOps": True}, _CHIEFS | {"watcher"}),
    (
        "admin",
        aggregate({"$currentOp": {"localOps": True}}, {"$unionWith": {"coll": "nix", "pipeline": _OWN}}, about=1),
        _CHIEFS | {"watcher"},
    ),
    ("admin", {"multicast": {"ping": 1}}, frozenset({SYSTEM})),
    ("admin", {"_killOperations": 1, "operationKeys": []}, frozenset({SYSTEM})),
    ("admin", {"clearLog": "global"}, _CHIEFS),
    ("admin", {"configureFailPoint": "nix", "mode": "off"}, _CHIEFS),
    ("admin", {"waitForFailPoint": "nix", "timesEntered": 1, "maxTimeMS": 1}, _CHIEFS),
    ("admin", {"logMessage": "hello"}, _CHIEFS),
    ("shop", {"testDeprecation": 1}, _USERS),
    ("shop", {"testDeprecationInVersion2": 1}, _USERS),
    ("shop", {"testRemoval": 1}, _USERS),
    ("shop", {"testVersion2": 1}, _USERS),
    ("shop", {"testVersions1And2": 1}, _USERS),
    ("shop", {"echo": 1}, _USERS),
    ("shop", {"reapLogicalSessionCacheNow": 1}, _USERS),
    ("shop", {"refreshLogicalSessionCacheNow": 1}, _USERS),
]

EVERYBODY: Final = (None, *USERS, SYSTEM)


def verdict(raw: RawClient, db: str, command: Command) -> tuple[int, str, str]:
    """Code, name and text if access control refuses a command; anything else counts as allowed."""
    reply = raw.command(command, db=db)
    if reply.get("code") == 13:
        return 13, reply["codeName"], reply["errmsg"]
    return 0, "", "no such command" if reply.get("code") == 59 else "allowed"


def test_every_command_is_in_the_matrix() -> None:
    tried = {next(iter(command)) for _, command in AS_ON_MONGOD}
    tried |= {next(iter(command)) for _, command, _ in OF_ROUTERS}
    names = {entry.name for entry in ROUTER_COMMANDS}
    assert names - tried == {"isdbgrid"}


@pytest.mark.parametrize("user", EVERYBODY)
def test_verdicts_are_those_of_a_mongod(closed: RunningCluster, plain: PlainMongod, user: str | None) -> None:
    key = Path(closed.document["auth"]["keyFile"]).read_text()
    differing = []
    with (
        identified(closed.address("router.0"), user, key) as ours,
        identified(plain.address, user, plain.key) as theirs,
    ):
        for db, command in AS_ON_MONGOD:
            name = next(iter(command))
            if name == "shutdown" and user in _CHIEFS and db == "admin":
                continue
            seen, expected = verdict(ours, db, command), verdict(theirs, db, command)
            if seen != expected:
                differing.append((db, command, seen, expected))
    assert differing == []


@pytest.mark.parametrize("user", ["reader", "custom", "manager", "nothing"])
def test_roles_and_privileges_are_shown_as_by_a_mongod(closed: RunningCluster, plain: PlainMongod, user: str) -> None:
    command = {"connectionStatus": 1, "showPrivileges": True}
    key = Path(closed.document["auth"]["keyFile"]).read_text()
    with (
        identified(closed.address("router.0"), user, key) as ours,
        identified(plain.address, user, plain.key) as theirs,
    ):
        shown = [comparable(raw.command(command)["authInfo"]) for raw in (ours, theirs)]
    assert shown[0] == shown[1]


def test_users_are_shown_the_roles_that_they_were_granted_themselves(
    closed: RunningCluster, plain: PlainMongod
) -> None:
    create: list[Command] = [
        {"createRole": "heir", "privileges": [], "roles": [CUSTOM_ROLE]},
        {"createUser": "heir", "pwd": PASSWORD, "roles": ["heir"]},
    ]
    key = Path(closed.document["auth"]["keyFile"]).read_text()
    verdicts = []
    for address, key_of_cluster in ((closed.address("router.0"), key), (plain.address, plain.key)):
        with identified(address, "chief", key_of_cluster) as chief:
            for command in create:
                assert chief.command(command)["ok"]
            with identified(address, "heir", key_of_cluster) as heir:
                verdicts.append([verdict(heir, "admin", {"rolesInfo": role}) for role in ("heir", CUSTOM_ROLE)])
            for drop in ({"dropUser": "heir"}, {"dropRole": "heir"}):
                assert chief.command(drop)["ok"]
    assert verdicts[0] == verdicts[1]
    assert [code for code, *_ in verdicts[0]] == [0, 13]


def comparable(value: Any) -> Any:  # noqa: ANN401 - any BSON value
    """A document whose arrays have an order."""
    if isinstance(value, dict):
        return {name: comparable(each) for name, each in value.items()}
    return sorted(map(comparable, value), key=str) if isinstance(value, list) else value


@pytest.mark.parametrize("user", EVERYBODY)
def test_what_only_routers_have_is_for_the_roles_that_mongodb_documents(
    closed: RunningCluster, user: str | None
) -> None:
    key = Path(closed.document["auth"]["keyFile"]).read_text()
    with identified(closed.address("router.0"), user, key) as raw:
        assert verdict(raw, "shop", {"isdbgrid": 1})[0] == 0
        for db, command, allowed in OF_ROUTERS:
            code, _, text = verdict(raw, db, command)
            name = next(iter(command))
            if user is None:
                assert text == f"command {name} requires authentication"
            else:
                assert (code == 0) == (user in allowed), (command, text)
