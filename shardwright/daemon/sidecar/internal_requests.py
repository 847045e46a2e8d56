"""Requests that only the cluster itself may send to a sidecar. Pure.

The mongod behind a sidecar has no sharding. It ignores the internal fields instead of refusing them, and lacks some of
the commands. Test commands are enabled on it for `prepareTransaction`, and some of them need no log-in.
"""

from collections.abc import Iterator
from typing import Final

from shardwright.wire.rawbson import spans_at_any_depth
from shardwright.wire.repeated_fields import refuse_repeated_join_fields
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
"""Internal commands without a leading underscore; of the others all but `_OF_USERS` are internal."""

_OF_USERS: Final = frozenset({"_hashBSONElement", "_isSelf", "_mergeAuthzCollections"})
"""Commands with a leading underscore that users may send, if the mongod allows them."""

_ON_ANY_DATABASE: Final = frozenset(
    {
        *("_configsvrCollMod", "_configsvrRenameCollectionMetadata", "_shardsvrCheckMetadataConsistency"),
        *("_shardsvrCheckMetadataConsistencyParticipant", "_shardsvrCollMod", "_shardsvrCollModParticipant"),
        *("_shardsvrCompactStructuredEncryptionData", "_shardsvrCreateCollection"),
        *("_shardsvrCreateCollectionParticipant", "_shardsvrCreateIndexes", "_shardsvrDropCollection"),
        "_shardsvrDropCollectionParticipant",
        *("_shardsvrDropCollectionIfUUIDNotMatching", "_shardsvrDropDatabase", "_shardsvrDropDatabaseParticipant"),
        *("_shardsvrDropIndexes", "_shardsvrMovePrimaryEnd", "_shardsvrMovePrimaryFinish", "_shardsvrMovePrimaryReady"),
        *("_shardsvrMovePrimaryReceive", "_shardsvrMovePrimaryStatus", "_shardsvrParticipantBlock"),
        *("_shardsvrRefineCollectionShardKey", "_shardsvrRenameCollection", "_shardsvrRenameCollectionParticipant"),
        *("_shardsvrRenameCollectionParticipantUnblock", "_shardsvrSetAllowMigrations"),
        *("clusterAggregate", "clusterDelete", "clusterFind", "clusterGetMore", "clusterInsert", "clusterUpdate"),
        *("captrunc", "cpuload", "echo", "emptycapped", "godinsert", "reapLogicalSessionCacheNow"),
        *("refreshLogicalSessionCacheNow", "stageDebug", "testDeprecation", "testDeprecationInVersion2", "testRemoval"),
        *("testVersion2", "testVersions1And2", "waitForOngoingChunkSplits", "setUserWriteBlockMode"),
    }
)
"""The commands checked here that run on other databases than ``admin`` too."""

FIELDS: Final = frozenset(
    {
        *(b"shardVersion", b"databaseVersion", b"involvedNamespaces", b"$configTime", b"$topologyTime", b"$replData"),
        *(b"coordinator", b"$coordinator", b"mayChangeOwner", b"fromMongos", b"needsMerge", b"exchange"),
        *(b"clientSession", b"runtimeConstants", b"fromMigrate", b"mayBypassWriteBlocking", b"$audit"),
    }
)
"""Fields between routers and shards that users must not send."""

_WITH_PIPELINES: Final = frozenset(
    {"aggregate", "collMod", "create", "explain", "findAndModify", "findandmodify", "update"}
)
_NAMES: Final = frozenset({b"$mergeCursors", b"$queue", b"$setVariableFromSubPipeline", b"$doingMerge"})
_PREFIX: Final = b"$_internal"
_MARKS: Final = (*_NAMES, _PREFIX)


def is_internal(request: Request) -> bool:
    """Whether only the cluster itself may send a request."""
    name = request.name
    if is_internal_command(name):
        return True
    if not FIELDS.isdisjoint(request.fields):
        return True
    if name not in _WITH_PIPELINES:
        return False
    frame = request.message.frame
    return any(mark in frame for mark in _MARKS) and any(
        _is_internal_name(field) for document in _documents(request) for field, _ in spans_at_any_depth(document)
    )


def refuse_hazardous_joins(request: Request) -> None:
    """Refuse joins that would crash the mongod (40413), also from users with all privileges."""
    if request.name in _WITH_PIPELINES:
        for document in _documents(request):
            refuse_repeated_join_fields(document)


def is_internal_command(name: str) -> bool:
    """Whether only the cluster itself may send a command."""
    return name in COMMANDS or (name.startswith("_") and name not in _OF_USERS)


def is_for_admin_alone(name: str) -> bool:
    """Whether an internal command, or one that the daemon answers itself, runs on the database ``admin`` alone."""
    return name not in _ON_ANY_DATABASE


def _documents(request: Request) -> Iterator[bytes]:
    """Yield all documents of a request: its body, and the statements in its sequences."""
    yield request.body
    for sequence in request.message.sequences:
        yield from sequence.documents


def _is_internal_name(name: bytes) -> bool:
    return name in _NAMES or name.startswith(_PREFIX)
