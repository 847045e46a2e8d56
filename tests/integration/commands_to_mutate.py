"""Commands for each kind of daemon, to be mutated. None of them does harm, whatever its arguments become."""

from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from bson.binary import Binary
from bson.code import Code
from bson.int64 import Int64
from bson.objectid import ObjectId
from bson.regex import Regex
from bson.timestamp import Timestamp

from tests.integration.sharded import Document

WRITES = frozenset(
    {
        *("insert", "update", "delete", "findAndModify", "createIndexes", "collMod", "create"),
        *("_configsvrCreateDatabase", "_shardsvrCreateCollectionParticipant"),
    }
)
"""Commands that could create a collection or database with an unreadable name, so their target is not changed."""

SESSION = {"id": Binary(UUID(int=7).bytes, 4)}
VALUES: Document = {
    "text": "grüße",
    "number": 1.5,
    "long": Int64(1 << 40),
    "id": ObjectId(b"twelve bytes"),
    "data": Binary(b"abc", 2),
    "regex": Regex("a.c", "i"),
    "code": Code("return 1", {"x": 1}),
    "time": Timestamp(5, 6),
    "truth": True,
    "list": [1, "two", {"three": 3}],
    "nothing": None,
}
COLLATION = {"locale": "de", "strength": 2}


def reads_and_writes(db: str, name: str) -> list[Document]:
    """Clients' commands on a collection sharded by ``key`` on two shards, split at 500."""
    full = f"{db}.{name}"
    commands: list[Document] = [
        {"find": name, "filter": {"key": 1, **VALUES}, "maxTimeMS": 1000, "lsid": SESSION},
        {"find": name, "filter": {"key": {"$gt": 400, "$lt": 600}}, "sort": {"key": 1, "a": -1}, "limit": 5, "skip": 1},
        {"find": name, "filter": {"$or": [{"key": {"$in": [1, 2]}}, VALUES]}, "projection": {"_id": 0, "key": 1}},
        {"find": name, "hint": {"key": 1}, "collation": COLLATION, "readConcern": {"level": "local"}},
        {"find": name, "$readPreference": {"mode": "nearest", "tags": [{"dc": "x"}], "maxStalenessSeconds": 120}},
        {
            "find": name,
            "batchSize": 1,
            "singleBatch": True,
            "let": {"x": 1},
            "filter": {"$expr": {"$eq": ["$k", "$$x"]}},
        },
        {"aggregate": name, "pipeline": [{"$match": VALUES}, {"$sort": {"key": 1}}, {"$limit": 3}], "cursor": {}},
        {"aggregate": name, "pipeline": [{"$group": {"_id": 1, "n": {"$sum": 1}}}], "cursor": {"batchSize": 3}},
        {"aggregate": name, "pipeline": [{"$match": {"key": 1}}, {"$unionWith": {"coll": "x"}}], "cursor": {}},
        {"aggregate": name, "pipeline": [{"$match": {"key": 1}}, {"$lookup": {"from": "x", "as": "y"}}], "cursor": {}},
        {"count": name, "query": {"key": {"$gte": 5}, **VALUES}, "limit": 5, "skip": 1},
        {"distinct": name, "key": "key", "query": {"a": VALUES}},
        {"insert": name, "documents": [{"key": 1, **VALUES}, {"key": 700}], "ordered": False, "writeConcern": {"w": 1}},
        {"insert": name, "documents": [{"key": 1}], "lsid": SESSION, "txnNumber": Int64(1), "stmtId": 0},
        {"update": name, "updates": [{"q": {"key": 1}, "u": {"$set": VALUES}, "upsert": False, "multi": False}]},
        {"update": name, "updates": [{"q": {"a": 1}, "u": [{"$set": {"b": 1}}], "multi": True, "c": {"x": 1}}]},
        {"update": name, "updates": [{"q": {"key": 2}, "u": {"$inc": {"a.$[x]": 1}}, "arrayFilters": [{"x": 1}]}]},
        {"delete": name, "deletes": [{"q": {"key": 1, **VALUES}, "limit": 1}, {"q": {"b": 1}, "limit": 0}]},
        {"findAndModify": name, "query": {"key": 1}, "update": {"$set": {"a": 1}}, "new": True, "fields": {"a": 1}},
        {"findAndModify": name, "query": {"key": 1}, "remove": True, "sort": {"a": 1}, "collation": COLLATION},
        {"explain": {"find": name, "filter": {"a": VALUES}, "sort": {"a": 1}}, "verbosity": "queryPlanner"},
        {"explain": {"update": name, "updates": [{"q": {"key": 1}, "u": {"$set": {"a": 1}}}]}},
        {"explain": {"aggregate": name, "pipeline": [{"$match": {"a": 1}}], "cursor": {}}},
        {"getMore": Int64(12345), "collection": name, "batchSize": 3, "maxTimeMS": 5},
        {"killCursors": name, "cursors": [Int64(5), Int64(6)]},
        {"listCollections": 1, "filter": {"name": "x"}, "nameOnly": True, "cursor": {"batchSize": 5}},
        {"listIndexes": name, "cursor": {"batchSize": 5}},
        {"collStats": name, "scale": 1024},
        {"validate": name, "full": False},
        {"collMod": name, "validationLevel": "off", "index": {"keyPattern": {"zz": 1}, "expireAfterSeconds": 5}},
        {"planCacheClear": name, "query": {"a": 1}},
        {"dataSize": full, "keyPattern": {"key": 1}, "min": {"key": 1}, "max": {"key": 5}},
    ]
    return [{**command, "$db": db} for command in commands]


def about_the_server() -> list[Document]:
    """Clients' commands to any server."""
    admin: list[Document] = [
        {
            "hello": 1,
            "client": {"driver": {"name": "x", "version": "1"}, "os": {"type": "Linux"}},
            "compression": ["z"],
        },
        {"ping": 1, "comment": VALUES, "$clusterTime": {"clusterTime": Timestamp(1, 1)}},
        {"getParameter": 1, "cursorTimeoutMillis": 1},
        {"endSessions": [SESSION]},
        {"refreshSessions": [SESSION]},
        {"listDatabases": 1, "filter": {"name": "x"}, "nameOnly": True},
        {"getLog": "global"},
        {"serverStatus": 1, "metrics": 0},
        {"currentOp": 1, "$ownOps": True},
        {"killOp": 1, "op": 999_999_999},
    ]
    return [{**command, "$db": "admin"} for command in admin]


def of_routers(full: str) -> list[Document]:
    """Administration commands to a router, for a collection that does not exist."""
    shell: list[Document] = [
        {"split": full, "middle": {"key": 5}},
        {"split": full, "bounds": [{"key": 1}, {"key": 5}]},
        {"moveChunk": full, "find": {"key": 1}, "to": "shard9", "_secondaryThrottle": True, "writeConcern": {"w": 1}},
        {"moveRange": full, "min": {"key": 1}, "max": {"key": 2}, "toShard": "shard9"},
        {"mergeChunks": full, "bounds": [{"key": 1}, {"key": 5}]},
        {"getShardVersion": full, "fullMetadata": True},
        {"clearJumboFlag": full, "find": {"key": 1}},
        {"repairShardedCollectionChunksHistory": full, "force": True},
        {"updateZoneKeyRange": full, "min": {"key": 1}, "max": {"key": 5}, "zone": None},
        {"addShardToZone": "shard9", "zone": "z"},
        {"balancerStatus": 1},
        {"listShards": 1},
    ]
    return [{**command, "$db": "admin"} for command in shell]


def of_shards(db: str, name: str) -> list[Document]:
    """Commands of routers, config servers and other shards to a shard, for a collection that does not exist."""
    full = f"{db}.{name}"
    version: Document = {"e": ObjectId(), "t": Timestamp(1, 1), "v": Timestamp(1, 0)}
    unsharded: Document = {"e": ObjectId(bytes(12)), "t": Timestamp(0, 0), "v": Timestamp(0, 0)}
    database: Document = {"uuid": Binary(bytes(16), 4), "timestamp": Timestamp(1, 1), "lastMod": 1}
    migration: Document = {"sessionId": "shard0_shard1_000000000000000000000000"}
    own: list[Document] = [
        {"_shardsvrDropCollection": name, "databaseVersion": database, "$db": db},
        {"_shardsvrCollMod": name, "databaseVersion": database, "validationLevel": "off", "$db": db},
        {"_shardsvrCreateCollection": name, "shardKey": {"a": 1}, "databaseVersion": database, "$db": db},
        {"_shardsvrRenameCollection": name, "to": f"{db}.other", "databaseVersion": database, "$db": db},
        {"find": name, "filter": {"key": 1}, "shardVersion": version, "$db": db},
        {"find": name, "shardVersion": unsharded, "databaseVersion": database, "$db": db},
        {"count": name, "shardVersion": version, "$topologyTime": Timestamp(1, 1), "$db": db},
        {"getShardVersion": full, "$db": "admin"},
        {"_flushRoutingTableCacheUpdates": full, "syncFromConfig": True, "$db": "admin"},
        {"splitChunk": full, "keyPattern": {"a": 1}, "min": {"a": 1}, "max": {"a": 5}, "from": "shard0"}
        | {"splitKeys": [{"a": 3}], "epoch": ObjectId(), "$db": "admin"},
        {"mergeChunks": full, "bounds": [{"a": 1}, {"a": 5}], "epoch": ObjectId(), "$db": "admin"},
        {"cleanupOrphaned": full, "startingFromKey": {"a": 1}, "$db": "admin"},
        {"_recvChunkStatus": full, **migration, "waitForSteadyOrDone": False, "$db": "admin"},
        {"_recvChunkCommit": full, **migration, "$db": "admin"},
        {"_recvChunkAbort": full, **migration, "$db": "admin"},
        {"_migrateClone": full, **migration, "number": 1, "$db": "admin"},
        {"_transferMods": full, **migration, "number": 1, "$db": "admin"},
        {"_getNextSessionMods": full, **migration, "$db": "admin"},
        {"_shardsvrDigestRange": full, "min": {"a": 1}, "max": {"a": 5}, "keyPattern": {"a": 1}, "$db": "admin"},
        {"splitVector": full, "keyPattern": {"a": 1}, "min": {"a": 1}, "max": {"a": 5}, "maxChunkSize": 1, "$db": db},
        {"_recvChunkReleaseCritSec": full, **migration, "$db": "admin"},
        {"_shardsvrMoveRange": full, "toShard": "nonesuch", "fromShard": "shard0", "min": {"a": 1}, "max": {"a": 5}}
        | {"epoch": ObjectId(), "collectionTimestamp": Timestamp(1, 1), "maxChunkSizeBytes": Int64(1 << 27)}
        | {"waitForDelete": False, "forceJumbo": 0, "secondaryThrottle": False, "$db": "admin"},
        _start_of_migration(full) | migration,
        {"_flushDatabaseCacheUpdates": "none", "syncFromConfig": True, "$db": "admin"},
        {"_shardsvrDropIndexes": name, "index": "a_1", "databaseVersion": database, "$db": db},
        {"_shardsvrCreateIndexes": name, "databaseVersion": database, "$db": db}
        | {"createIndexesRequest": {"createIndexes": name, "indexes": [{"key": {"a": 1}, "name": "a_1"}]}},
        {"_shardsvrSetAllowMigrations": name, "allowMigrations": True, "databaseVersion": database, "$db": db},
    ]
    return own


def _start_of_migration(full: str) -> Document:
    """The request to receive a range from a shard that does not exist."""
    attempt: Document = {"sessionId": "none", "start": datetime(2026, 1, 1, tzinfo=UTC), "documents": 1, "bytes": 5}
    return {
        "_recvChunkStart": full,
        "uuid": Binary(bytes(16), 4),
        "lsid": SESSION,
        "txnNumber": Int64(1),
        "from": "nonesuch/127.0.0.1:1",
        "fromShardName": "nonesuch",
        "toShardName": "shard0",
        "min": {"a": 1},
        "max": {"a": 5},
        "shardKeyPattern": {"a": 1},
        "collectionUUID": Binary(bytes(16), 4),
        "attempts": [attempt],
        "secondaryThrottle": False,
        "writeConcern": {"w": 1},
        "$db": "admin",
    }


def of_participants(db: str) -> list[Document]:
    """Coordinators' commands to a participant, for an unused collection and a database that does not exist.

    Each has its own session, so that a changed transaction number does not affect the others.
    """
    name = "participants"
    database: Document = {"uuid": Binary(bytes(16), 4), "timestamp": Timestamp(1, 1), "lastMod": 1}
    modification: Document = {"validationLevel": "off", "pipeline": [{"$match": {"a": 1}}]}
    migration: Document = {"migrationId": Binary(bytes(16), 4), "decision": "aborted"}
    commands: list[Document] = [
        {"_shardsvrCreateCollectionParticipant": name, "options": {}, "collectionUUID": Binary(bytes(range(16)), 4)}
        | {"idIndex": {"v": 2, "key": {"_id": 1}, "name": "_id_"}}
        | {"indexes": [{"v": 2, "key": {"a": 1}, "name": "a_1"}], "$db": db},
        {"_shardsvrCollModParticipant": name, "collModRequest": modification, "$db": db},
        {"_shardsvrDropDatabaseParticipant": 1, "databaseVersion": database, "$db": "nonesuch"},
        {"_shardsvrDropCollectionParticipant": name, "$db": db},
        {"_shardsvrFinishRangeDeletion": f"{db}.{name}", **migration, "$db": "admin"},
    ]
    return [
        {**command, "lsid": {"id": Binary(UUID(int=100 + number).bytes, 4)}, "txnNumber": Int64(number)}
        for number, command in enumerate(commands)
    ]


def of_config_servers(full: str) -> list[Document]:
    """Commands of routers and shards to the config servers, for a collection that does not exist."""
    version: Document = {"e": ObjectId(), "t": Timestamp(1, 1), "v": Timestamp(1, 0)}
    chunk: Document = {"min": {"a": 1}, "max": {"a": 5}, "lastmod": Timestamp(1, 1), "shard": "shard9"}
    commands: list[dict[str, Any]] = [
        {"_configsvrCommitChunkSplit": full, "collEpoch": ObjectId(), "min": {"a": 1}, "max": {"a": 9}}
        | {"splitPoints": [{"a": 5}], "shard": "shard9", "fromChunkVersion": version},
        {"_configsvrCommitChunksMerge": full, "shard": "shard9", "collUUID": Binary(bytes(16), 4), "chunkRange": chunk},
        {"_configsvrCommitChunkMigration": full, "fromShard": "a", "toShard": "b", "migratedChunk": chunk}
        | {"fromShardCollectionVersion": version, "validAfter": Timestamp(1, 1)},
        {"_configsvrEnsureChunkVersionIsGreaterThan": full, "minKey": {"a": 1}, "maxKey": {"a": 5}}
        | {"version": version, "nss": full, "collectionUUID": Binary(bytes(16), 4)},
        {"_configsvrMoveRange": full, "toShard": "shard9", "min": {"a": 1}, "max": {"a": 5}},
        {"_configsvrSetAllowMigrations": full, "allowMigrations": True, "collectionUUID": Binary(bytes(16), 4)},
        {"_configsvrClearJumboFlag": full, "epoch": ObjectId(), "minKey": {"a": 1}, "maxKey": {"a": 5}},
        {"_configsvrRepairShardedCollectionChunksHistory": full, "force": True, "writeConcern": {"w": "majority"}},
        {"_configsvrUpdateZoneKeyRange": full, "min": {"a": 1}, "max": {"a": 5}, "zone": "none"},
        {"_configsvrAddShardToZone": "shard9", "zone": "z"},
        {"_configsvrRemoveShardFromZone": "shard9", "zone": "z"},
        {"_configsvrRemoveTags": full},
        {"_configsvrBalancerStatus": 1},
    ]
    return [{**command, "writeConcern": {"w": "majority", "wtimeout": 1000}, "$db": "admin"} for command in commands]
