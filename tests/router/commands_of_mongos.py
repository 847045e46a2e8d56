"""The commands of mongos 6.0 as data: commands that it runs, commands that it only refuses, and missing ones.

The source is the reference of mongos 6.0 from which the router is built, itself from MongoDB's sources and tests.
"""

from typing import Final


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


READS_AND_WRITES: Final = _names(
    """
    find getMore killCursors aggregate count distinct mapReduce explain insert update delete findAndModify filemd5
    """
)
DDL: Final = _names(
    """
    create drop dropDatabase renameCollection collMod convertToCapped createIndexes dropIndexes deleteIndexes
    listIndexes listCollections listDatabases setIndexCommitQuorum validate validateDBMetadata planCacheClear
    planCacheClearFilters planCacheSetFilter planCacheListFilters compactStructuredEncryptionData
    """
)
SHARDING: Final = _names(
    """
    enableSharding shardCollection refineCollectionShardKey reshardCollection abortReshardCollection
    commitReshardCollection cleanupReshardCollection addShard removeShard listShards movePrimary split mergeChunks
    moveChunk moveRange clearJumboFlag balancerStart balancerStop balancerStatus balancerCollectionStatus
    configureCollectionBalancing setAllowMigrations addShardToZone removeShardFromZone updateZoneKeyRange
    repairShardedCollectionChunksHistory flushRouterConfig getShardMap getShardVersion splitVector
    """
)
SESSIONS: Final = _names(
    """
    startSession refreshSessions endSessions killSessions killAllSessions killAllSessionsByPattern
    refreshLogicalSessionCacheNow reapLogicalSessionCacheNow commitTransaction abortTransaction
    """
)
USERS: Final = _names(
    """
    createUser updateUser dropUser dropAllUsersFromDatabase grantRolesToUser revokeRolesFromUser usersInfo createRole
    updateRole dropRole dropAllRolesFromDatabase grantPrivilegesToRole revokePrivilegesFromRole grantRolesToRole
    revokeRolesFromRole rolesInfo _mergeAuthzCollections invalidateUserCache saslStart saslContinue authenticate
    getnonce logout
    """
)
DIAGNOSTICS: Final = _names(
    """
    hello isMaster ismaster isdbgrid ping buildInfo connectionStatus whatsmyuri hostInfo getCmdLineOpts getLog
    listCommands features availableQueryOptions echo netstat connPoolStats connPoolSync getDiagnosticData clearLog
    logRotate rotateCertificates logMessage dropConnections startRecordingTraffic stopRecordingTraffic _isSelf
    _hashBSONElement serverStatus collStats dbStats dataSize currentOp killOp _killOperations profile fsync
    setFeatureCompatibilityVersion getDefaultRWConcern setDefaultRWConcern multicast setUserWriteBlockMode
    getClusterParameter setClusterParameter appendOplogNote shutdown getParameter setParameter configureFailPoint
    waitForFailPoint setProfilingFilterGlobally testDeprecation testDeprecationInVersion2 testRemoval testVersion2
    testVersions1And2
    """
)

RUN: Final = READS_AND_WRITES | DDL | SHARDING | SESSIONS | USERS | DIAGNOSTICS
"""Commands that have an effect or return data."""

REFUSED: Final = {
    "compact": (115, "compact not allowed through mongos"),
    "replSetGetStatus": (None, "replSetGetStatus is not supported through mongos"),
    "setFreeMonitoring": (125, "Free Monitoring commands are not supported on mongos"),
    "getLastError": (5739000, "getLastError command is not supported"),
}
"""Commands that exist only to be refused, with the code, if there is one, and the message."""

ONLY_WITH_TEST_COMMANDS: Final = _names(
    """
    _hashBSONElement clearLog configureFailPoint echo logMessage multicast reapLogicalSessionCacheNow
    refreshLogicalSessionCacheNow testDeprecation testDeprecationInVersion2 testRemoval testVersion2
    testVersions1And2
    """
)

OF_OTHER_SERVERS: Final = _names(
    """
    applyOps captrunc checkShardingIndex cleanupOrphaned cloneCollectionAsCapped coordinateCommitTransaction dbHash
    fsyncUnlock godinsert lockInfo oplog prepareTransaction reIndex replSetFreeze replSetGetConfig
    replSetHeartbeat replSetInitiate replSetReconfig replSetStepDown splitChunk top waitForOngoingChunkSplits
    clusterAggregate clusterDelete clusterFind clusterInsert clusterUpdate _configsvrAddShard _configsvrMoveRange
    _recvChunkStart _shardsvrCreateCollection _shardsvrDropCollection
    """
)
"""Commands of shards, of config servers and of members of a replica set."""

OF_EARLIER_VERSIONS: Final = _names(
    """
    clone copydb eval geoNear getPrevError group parallelCollectionScan repairDatabase resetError shardConnPoolStats
    """
)

OF_LATER_VERSIONS: Final = _names(
    """
    analyze analyzeShardKey bulkWrite configureQueryAnalyzer createSearchIndexes dropSearchIndex listSearchIndexes
    mergeAllChunksOnShard moveCollection transitionFromDedicatedConfigServer transitionToDedicatedConfigServer
    unshardCollection updateSearchIndex
    """
)

ABSENT: Final = OF_OTHER_SERVERS | OF_EARLIER_VERSIONS | OF_LATER_VERSIONS
"""Commands that are as unknown to a mongos 6.0 as any other word."""

ADDED: Final = {
    "balancerExplain": "what the balancer would do next",
    "finishUpgrade": "raises the feature version of our daemons, which mongos's own have not",
    "checkMetadataConsistency": "of MongoDB 7.0, so that damage can be found",
}
"""Commands that the router has on purpose and a mongos 6.0 has not."""
