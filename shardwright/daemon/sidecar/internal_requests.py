"""Which requests only the cluster itself may send to a sidecar. Pure.

The mongod behind a sidecar has no sharding: it ignores the fields, so that it cannot refuse them to users, and does not
know some of the commands. Test commands are enabled on it for `prepareTransaction`, and some of them need no log-in.
"""

from collections.abc import Iterator
from typing import Any, Final

from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request

COMMANDS: Final = frozenset(
    {
        *("coordinateCommitTransaction", "prepareTransaction", "setShardVersion", "splitChunk", "mergeChunks"),
        *("clusterAbortTransaction", "clusterAggregate", "clusterCommitTransaction", "clusterDelete", "clusterFind"),
        *("clusterGetMore", "clusterInsert", "clusterUpdate", "moveChunk", "getDatabaseVersion"),
        # Test commands of mongod 6.0. The last one crashes it.
        *("captrunc", "clearLog", "configureFailPoint", "cpuload", "echo", "emptycapped", "godinsert"),
        *("httpClientRequest", "logMessage", "makeSnapshot", "pinHistoryReplicated", "reapLogicalSessionCacheNow"),
        *("refreshLogicalSessionCacheNow", "replSetTest", "replSetTestEgress", "setCommittedSnapshot", "sleep"),
        *("stageDebug", "testDeprecation", "testInternalTransactions", "testRemoval", "testReshardCloneCollection"),
        *("testVersion2", "testVersions1And2", "waitForFailPoint", "waitForOngoingChunkSplits", "whatsmysni"),
        "testDeprecationInVersion2",
    }
)
"""Commands without an underscore in front; of those with one, all but `_OF_USERS` are internal."""

_OF_USERS: Final = frozenset({"_isSelf", "_mergeAuthzCollections"})
"""Commands with an underscore in front which users may send, if the mongod lets them."""

FIELDS: Final = frozenset(
    {
        *(b"shardVersion", b"databaseVersion", b"involvedNamespaces", b"$configTime", b"$topologyTime", b"$replData"),
        *(b"coordinator", b"$coordinator", b"mayChangeOwner", b"fromMongos", b"needsMerge", b"exchange"),
        *(b"runtimeConstants", b"fromMigrate", b"mayBypassWriteBlocking", b"$audit"),
    }
)
"""Fields with which routers and shards tell each other what users must not tell them."""

_WITH_PIPELINES: Final = frozenset({"aggregate", "collMod", "create", "explain"})
_STAGES: Final = ("$mergeCursors", "$queue", "$setVariableFromSubPipeline")
_PREFIX: Final = "$_internal"
_MERGED_GROUP: Final = "$doingMerge"
_MARKS: Final = tuple(mark.encode() for mark in (*_STAGES, _PREFIX, _MERGED_GROUP))


def is_internal(request: Request) -> bool:
    """Whether only the cluster itself may send a request."""
    name = request.name
    if name in COMMANDS or (name.startswith("_") and name not in _OF_USERS):
        return True
    if not FIELDS.isdisjoint(request.fields):
        return True
    if name not in _WITH_PIPELINES:
        return False
    body = request.body
    return any(mark in body for mark in _MARKS) and any(map(_is_internal_name, _names(decode_document(body))))


def _is_internal_name(name: str) -> bool:
    return name in _STAGES or name == _MERGED_GROUP or name.startswith(_PREFIX)


def _names(value: Any) -> Iterator[str]:  # noqa: ANN401 - a BSON value can be anything
    """The names of all fields, at whatever depth: stages are also in stages and expressions."""
    pending = [value]
    while pending:
        each = pending.pop()
        if isinstance(each, dict):
            yield from each
            pending += each.values()
        elif isinstance(each, list):
            pending += each
