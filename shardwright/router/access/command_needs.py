"""The table of the privileges that each command requires, apart from `access_control.WITHOUT_LOG_IN`.

Rows that require more than MongoDB does are listed in docs/access-control.md.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from shardwright.daemon.users import ANY, ANY_ACTION, CLUSTER, Resource
from shardwright.router.access.needs import (
    AllOf,
    AnyOf,
    Anything,
    Need,
    Needs,
    OfThoseWho,
    Row,
    kill_op_needs,
    nothing,
    on_cluster,
    on_collection,
    on_database,
    on_full_name,
    on_named_database,
)
from shardwright.router.access.pipeline_needs import (
    aggregate_needs,
    bypasses_validation,
    named_database,
    pipeline_needs,
    whole_pipeline,
)
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import append, decode_value, decode_whole, encode_elements, find, is_string
from shardwright.wire.request import Request, update_pipelines

_SETTINGS: Final = Resource("config", "settings")
_SHARDS: Final = Resource("config", "shards")
_ZONES: Final = Resource("config", "tags")


def _write_needs(*actions: str) -> Row:
    def needs(request: Request) -> Needs:
        target = Resource(request.db, request.collection)
        wanted = [*actions]
        if request.get(b"bypassDocumentValidation"):
            wanted.append("bypassDocumentValidation")
        return [Need(action, target) for action in wanted]

    return needs


def _update_needs(request: Request) -> Needs:
    _check_update_stages(request)
    yield from _write_needs("update")(request)
    if any(map(_is_upsert, request.documents(b"updates"))):
        yield Need("insert", Resource(request.db, request.collection))


def _check_update_stages(request: Request) -> None:
    """Refuse stages in update pipelines that no user may send. The stages allowed there require no privileges."""
    for document, span in update_pipelines(request):
        pipeline_needs(request.db, request.collection, decode_whole(document, span))


def _is_upsert(statement: bytes) -> bool:
    span = find(statement, b"upsert")
    return span is not None and bool(decode_value(statement, span))


def _find_and_modify_needs(request: Request) -> Needs:
    _check_update_stages(request)
    yield from _write_needs("find", *_changes_of(request.get(b"remove")))(request)
    if request.get(b"upsert"):
        yield Need("insert", Resource(request.db, request.collection))


def _changes_of(remove: object) -> tuple[str, ...]:
    """Return the actions of a ``findAndModify``; a ``remove`` of another type might be read as either."""
    if remove is None or isinstance(remove, bool | int):
        return ("remove",) if remove else ("update",)
    return "remove", "update"


def _explain_needs(request: Request) -> Needs:
    body = request.raw_object(b"explain") or b"\5\0\0\0\0"
    if find(body, b"$db") is None:
        body = append(body, encode_elements({"$db": request.db}))
    explained = Request(OpMsg(op_msg(body, request_id=request.message.request_id)))
    if explained.db != request.db:
        text = f"Mismatched $db in explain command. Expected {request.db} but got {explained.db}"
        raise CommandError(ErrorCode.InvalidNamespace, text)
    row = TABLE.get(_EXPLAINED_ALIASES.get(explained.name, explained.name))
    return [EVERYTHING] if row is None else row(explained)


_EXPLAINED_ALIASES: Final = {"findandmodify": "findAndModify", "mapreduce": "mapReduce"}


def _map_reduce_needs(request: Request) -> Needs:
    yield Need("find", Resource(request.db, request.collection))
    out = request.get(b"out")
    if is_string(out):
        out = {"replace": out}
    if isinstance(out, Mapping):
        db = named_database(out.get("db"), request.db)
        bypassing = ("bypassDocumentValidation",) if bypasses_validation(request) else ()
        for kind, actions in (("replace", ("insert", "remove")), ("merge", _CHANGES), ("reduce", _CHANGES)):
            if kind in out:
                yield from (Need(action, Resource(db, str(out[kind]))) for action in (*actions, *bypassing))


_CHANGES: Final = ("insert", "update")


def _create_needs(request: Request) -> Needs:
    target = Resource(request.db, request.collection)
    source = request.get(b"viewOn")
    if is_string(source):
        yield Need("createCollection", target)
        yield _view_need(request, target, source)
        return
    yield AnyOf((Need("createCollection", target), Need("insert", target)))
    if request.get(b"capped"):
        yield Need("convertToCapped", target)


def _coll_mod_needs(request: Request) -> Needs:
    yield Need("collMod", Resource(request.db, request.collection))
    source = request.get(b"viewOn")
    if is_string(source):
        yield _view_need(request, Resource(request.db, request.collection), source)


def _view_need(request: Request, view: Resource, source: str) -> OfThoseWho:
    """Require that users who may read the view may also read its sources. Others may define it without that."""
    needs = pipeline_needs(request.db, source, whole_pipeline(request))
    return OfThoseWho(Need("find", view), AllOf(tuple(needs)))


def _rename_needs(request: Request) -> Needs:
    source, target = (_full(request, name) for name in (b"renameCollection", b"to"))
    dropping = (Need("dropCollection", target),) if request.get(b"dropTarget") else ()
    as_a_copy = (Need("find", source), Need("dropCollection", source), *(Need(each, target) for each in _COPIES))
    if source.db != target.db or _is_system(source) or _is_system(target):
        return [*as_a_copy, *dropping]
    # A user who may read only the target must not gain access to the source by the rename.
    in_place = Need("renameCollectionSameDB", Resource(source.db))
    readable = OfThoseWho(Need("find", target), Need("find", source))
    return [AnyOf((AllOf((in_place, readable, *dropping)), AllOf((*as_a_copy, *dropping))))]


def _is_system(collection: Resource) -> bool:
    return (collection.collection or "").startswith("system.")


_COPIES: Final = ("insert", "createIndex")


def _file_needs(request: Request) -> Needs:
    return [Need("find", Resource(request.db, f"{request.get(b'root', 'fs')}.chunks"))]


def _list_collections_needs(request: Request) -> Needs:
    every = Need("listCollections", Resource(request.db))
    if request.get(b"nameOnly") is True and request.get(b"authorizedCollections") is True:
        return [AnyOf((every, Anything(request.db)))]
    return [every]


def _profile_needs(request: Request) -> Needs:
    if request.get(b"profile") == -1 and not {b"slowms", b"sampleRate", b"filter"} & request.fields.keys():
        return [
            AnyOf((Need("enableProfiler", Resource(request.db)), Need("find", Resource(request.db, "system.profile"))))
        ]
    return [Need("enableProfiler", Resource(request.db))]


def _on_zones(*needs: Need) -> Row:
    """Build the row of a command that used to be a write to the catalog; write privileges there still suffice."""
    requirement = AnyOf((Need("enableSharding", CLUSTER), AllOf(needs)))
    return lambda _: [requirement]


def _validate_metadata_needs(request: Request) -> Needs:
    db = request.get(b"db")
    return [Need("validate", Resource(db) if is_string(db) else ANY)]


def _granting(action: str | None) -> Row:
    """Build the row of a command that grants roles: the action on its database, grantRole on each role's database."""

    def needs(request: Request) -> Needs:
        if action is not None:
            yield Need(action, Resource(request.db))
        yield from (Need("grantRole", Resource(db)) for db in _databases_of_roles(request))
        for privilege in _documents(request.get(b"privileges")):
            yield Need("grantRole", _resource_of(privilege.get("resource")))
        if b"authenticationRestrictions" in request.fields:
            yield Need("setAuthenticationRestriction", Resource(request.db))

    return needs


def _revoking(request: Request) -> Needs:
    yield from (Need("revokeRole", Resource(db)) for db in _databases_of_roles(request))
    for privilege in _documents(request.get(b"privileges")):
        yield Need("revokeRole", _resource_of(privilege.get("resource")))


def _update_user_needs(request: Request) -> Needs:
    fields = request.fields
    if b"pwd" in fields or b"mechanisms" in fields:
        yield Need("changePassword", Resource(request.db))
    if b"customData" in fields:
        yield Need("changeCustomData", Resource(request.db))
    if b"roles" in fields:
        yield Need("revokeRole", ANY)
    yield from _granting(None)(request)


def _update_role_needs(request: Request) -> Needs:
    yield Need("revokeRole", ANY)
    yield from _granting(None)(request)


def _users_info(request: Request) -> Needs:
    asked = request.get(request.name.encode())
    if isinstance(asked, Mapping) and asked.get("forAllDBs"):
        return [Need("viewUser", CLUSTER)]
    return _needs_about("viewUser", asked, request.db)


def _roles_info(request: Request) -> Needs:
    asked = request.get(request.name.encode())
    if isinstance(asked, Mapping) and "role" not in asked:
        return []  # the config servers refuse it, no matter who asks
    return _needs_about("viewRole", asked, request.db)


def _needs_about(action: str, asked: Any, db: str) -> Needs:  # noqa: ANN401 - whatever a client sent
    named = asked if isinstance(asked, list) else [asked]
    return [Need(action, Resource(db)) for db in sorted({_db_of(each, db) for each in named})]


def _metadata_needs(request: Request) -> Needs:
    """Return the row of ``checkMetadataConsistency``. MongoDB 7.0's own action is unknown to the config servers."""
    about = request.get(b"checkMetadataConsistency")
    if is_string(about):
        return [Need("validate", Resource(request.db, about))]
    return [Need("listShards", CLUSTER) if request.db == "admin" else Need("validate", Resource(request.db))]


def _kill_by_pattern_needs(request: Request) -> Needs:
    yield Need("killAnySession", CLUSTER)
    if any({"users", "roles"} & pattern.keys() for pattern in _documents(request.get(b"killAllSessionsByPattern"))):
        yield Need("impersonate", CLUSTER)


def _databases_of_roles(request: Request) -> list[str]:
    given: list[Any] = []
    for name in (b"roles", b"grantedRoles"):
        value = request.get(name)
        given += value if isinstance(value, list) else []
    return sorted({_db_of(role, request.db) for role in given})


def _db_of(named: Any, db: str) -> str:  # noqa: ANN401 - whatever a client sent
    return str(named["db"]) if isinstance(named, Mapping) and "db" in named else db


def _documents(value: Any) -> Iterable[Mapping[str, Any]]:  # noqa: ANN401 - whatever a client sent
    return [each for each in value if isinstance(each, Mapping)] if isinstance(value, list) else []


def _merge_needs(request: Request) -> Needs:
    """Return the row of ``_mergeAuthzCollections``: change users and roles anywhere, read the source collections."""
    actions = ["createUser", "createRole", "grantRole", "revokeRole"]
    if request.get(b"drop"):
        actions += ["dropUser", "dropRole"]
    yield from (Need(action, ANY) for action in actions)
    for name in (b"tempUsersCollection", b"tempRolesCollection"):
        if request.get(name):
            yield Need("find", _full(request, name))


def _resource_of(document: Any) -> Resource:  # noqa: ANN401 - whatever a client sent
    """Return the database of a privilege; every database if it spans several or is on buckets."""
    is_of_one = isinstance(document, Mapping) and "system_buckets" not in document
    db = document.get("db") if is_of_one else None
    return Resource(db) if is_string(db) and db else ANY


def _full(request: Request, name: bytes) -> Resource:
    db, _, collection = str(request.get(name)).partition(".")
    return Resource(db, collection)


EVERYTHING: Final = Need(ANY_ACTION, CLUSTER)
"""A privilege that members of the cluster have, and that no role grants to users."""

_SAME_ON_CLUSTER: Final = (
    *("addShard", "removeShard", "listShards", "netstat", "shutdown", "getShardMap", "flushRouterConfig"),
    *("connPoolStats", "connPoolSync", "dropConnections", "fsync", "getCmdLineOpts", "getLog", "getParameter"),
    *("setParameter", "hostInfo", "logRotate", "rotateCertificates", "serverStatus", "getDefaultRWConcern"),
    *("setDefaultRWConcern", "getClusterParameter", "setClusterParameter", "setFeatureCompatibilityVersion"),
    *("setUserWriteBlockMode", "appendOplogNote", "invalidateUserCache"),
    *("replSetGetStatus", "setFreeMonitoring"),
)
_SAME_ON_COLLECTION: Final = (
    *("convertToCapped", "listIndexes", "collStats", "validate", "compactStructuredEncryptionData"),
    "compact",
)
SAME_FOR_COLLECTION: Final = frozenset({"find", "count", "distinct"})
"""Commands whose needs depend on the collection alone, so that an earlier decision can be reused."""

_OF_EVERYBODY: Final = (
    *("abortTransaction", "commitTransaction", "endSessions", "refreshSessions", "startSession", "logout"),
    *("availableQueryOptions", "getMore", "killCursors", "reapLogicalSessionCacheNow", "refreshLogicalSessionCacheNow"),
    *("_hashBSONElement", "echo", "testDeprecation", "testDeprecationInVersion2", "testRemoval", "testVersion2"),
    *("testVersions1And2", "killSessions", "listDatabases"),
)
_DISTURBING: Final = ("clearLog", "configureFailPoint", "logMessage", "waitForFailPoint")
"""Test commands that disturb others. MongoDB allows them to every client, even before a log-in."""

_FOR_CLUSTER_ALONE: Final = ("_killOperations", "multicast")

TABLE: Final[dict[str, Row]] = {
    **{name: on_cluster(name) for name in _SAME_ON_CLUSTER},
    **{name: on_collection(name) for name in _SAME_ON_COLLECTION},
    **{name: on_collection("find") for name in SAME_FOR_COLLECTION},
    **dict.fromkeys(_OF_EVERYBODY, nothing),
    **{name: on_cluster("setParameter", "shutdown") for name in _DISTURBING},
    **dict.fromkeys(_FOR_CLUSTER_ALONE, lambda _: [EVERYTHING]),
    "features": lambda request: [Need("oidReset", CLUSTER)] if request.get(b"oidReset") else (),
    "dataSize": on_full_name("find"),
    "splitVector": on_full_name("splitVector"),
    "filemd5": _file_needs,
    "insert": _write_needs("insert"),
    "delete": _write_needs("remove"),
    "update": _update_needs,
    "findAndModify": _find_and_modify_needs,
    "aggregate": aggregate_needs,
    "mapReduce": _map_reduce_needs,
    "explain": _explain_needs,
    "create": _create_needs,
    "collMod": _coll_mod_needs,
    "drop": on_collection("dropCollection"),
    "dropDatabase": on_database("dropDatabase"),
    "dbStats": on_database("dbStats"),
    "createIndexes": on_collection("createIndex"),
    "setIndexCommitQuorum": on_collection("createIndex"),
    "dropIndexes": on_collection("dropIndex"),
    "renameCollection": _rename_needs,
    "listCollections": _list_collections_needs,
    "planCacheClear": on_collection("planCacheWrite"),
    "planCacheClearFilters": on_collection("planCacheIndexFilter"),
    "planCacheListFilters": on_collection("planCacheIndexFilter"),
    "planCacheSetFilter": on_collection("planCacheIndexFilter"),
    "checkMetadataConsistency": _metadata_needs,
    "validateDBMetadata": _validate_metadata_needs,
    "profile": _profile_needs,
    "setProfilingFilterGlobally": lambda _: [Need("enableProfiler", ANY)],
    "startRecordingTraffic": on_cluster("trafficRecord"),
    "stopRecordingTraffic": on_cluster("trafficRecord"),
    "getDiagnosticData": lambda _: [
        *(Need(each, CLUSTER) for each in ("serverStatus", "replSetGetStatus", "connPoolStats")),
        Need("collStats", Resource("local", "oplog.rs")),
    ],
    "currentOp": on_cluster("inprog"),
    "killOp": kill_op_needs,
    "killAllSessions": on_cluster("killAnySession"),
    "killAllSessionsByPattern": _kill_by_pattern_needs,
    "enableSharding": on_named_database("enableSharding"),
    "movePrimary": on_named_database("moveChunk"),
    "shardCollection": on_full_name("enableSharding"),
    "balancerCollectionStatus": on_full_name("enableSharding"),
    "moveChunk": on_full_name("moveChunk"),
    "moveRange": on_full_name("moveChunk"),
    "setAllowMigrations": on_full_name("moveChunk"),
    "split": on_full_name("splitChunk"),
    "mergeChunks": on_full_name("splitChunk"),
    "repairShardedCollectionChunksHistory": on_full_name("splitChunk"),
    "configureCollectionBalancing": on_full_name("splitChunk", "moveChunk"),
    "refineCollectionShardKey": on_full_name("refineCollectionShardKey"),
    "clearJumboFlag": on_full_name("clearJumboFlag"),
    "getShardVersion": on_full_name("getShardVersion"),
    "reshardCollection": on_full_name("reshardCollection"),
    "abortReshardCollection": on_full_name("reshardCollection"),
    "commitReshardCollection": on_full_name("reshardCollection"),
    "cleanupReshardCollection": on_full_name("reshardCollection"),
    "balancerStart": lambda _: [Need("update", _SETTINGS)],
    "balancerStop": lambda _: [Need("update", _SETTINGS)],
    "balancerStatus": lambda _: [Need("find", _SETTINGS)],
    "finishUpgrade": on_cluster("setFeatureCompatibilityVersion"),
    "balancerExplain": lambda _: [Need("find", _SETTINGS), Need("listShards", CLUSTER)],
    "addShardToZone": _on_zones(Need("update", _SHARDS)),
    "removeShardFromZone": _on_zones(Need("update", _SHARDS), Need("find", _ZONES)),
    "updateZoneKeyRange": _on_zones(
        Need("find", _SHARDS), *(Need(action, _ZONES) for action in ("find", "update", "remove"))
    ),
    "createUser": _granting("createUser"),
    "createRole": _granting("createRole"),
    "updateUser": _update_user_needs,
    "updateRole": _update_role_needs,
    "dropUser": on_database("dropUser"),
    "dropAllUsersFromDatabase": on_database("dropUser"),
    "dropRole": on_database("dropRole"),
    "dropAllRolesFromDatabase": on_database("dropRole"),
    "grantRolesToUser": _granting(None),
    "grantRolesToRole": _granting(None),
    "grantPrivilegesToRole": _granting(None),
    "revokeRolesFromUser": _revoking,
    "revokeRolesFromRole": _revoking,
    "revokePrivilegesFromRole": _revoking,
    "usersInfo": _users_info,
    "rolesInfo": _roles_info,
    "_mergeAuthzCollections": _merge_needs,
}
"""The needs of each command, by its name without aliases."""
