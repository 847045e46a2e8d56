"use strict";
// Fail points and parameters that suites set, but that no server here has. Such a suite is skipped instead of failing.
const { ErrorCodes, unsupported } = require("../errors.js");

// Fail points of MongoDB's sharding code at places that the daemons here do not have. A mongod has them too and accepts
// them, but never reaches the place, because it is not part of a sharded cluster.
const OF_OTHER_CODE = new Set([
  ...["doNotRefreshRecipientAfterCommit", "failMigrationOnRecipient", "failUpdateShardIdentityConfigString"],
  ...["hangBeforeFilteringMetadataRefresh", "hangBeforeInsertOnUpdateShardKey", "hangBeforePostMigrationCommitRefresh"],
  ...["hangInCleanStaleDataStage", "hangInCloneStage", "hangInPersistMigrateCommitDecisionInterruptible"],
  ...["hangInRecoverRefreshThread", "hangPersistCollectionAndChangedChunksAfterDropChunks"],
  ...["hangRefineCollectionShardKeyAfterRefresh", "hangRefineCollectionShardKeyBeforeCommit"],
  ...["hangRefineCollectionShardKeyBeforeUpdatingChunks", "migrateCommitInvalidChunkQuery"],
  ...["overrideBalanceRoundInterval", "participantReturnNetworkErrorForPrepareAfterExecutingPrepareLogic"],
  ...["shardedAggregateFailToDispatchExchangeConsumerPipeline", "shardedAggregateFailToEstablishMergingShardCursor"],
  ...["skipDatabaseVersionMetadataRefresh", "skipShardFilteringMetadataRefresh"],
  ...["throwInternalErrorInDeleteRange", "throwWriteConflictExceptionInDeleteRange"],
]);

// A suite must not continue as if the server had stopped at the fail point.
function refuseFailPoint({ configureFailPoint: name, mode }) {
  if (OF_OTHER_CODE.has(name) && mode !== "off") unsupported(`the fail point ${name}`);
}

// Record a setting that a server does not have as the reason for any later failure. The suite may also expect its error.
function noteUnknown(command, reply) {
  if (reply === null || reply.ok === 1) return;
  if (command.configureFailPoint !== undefined && reply.code === ErrorCodes.FailPointSetFailed)
    host.unsupported.push(`not supported: the fail point ${command.configureFailPoint}`);
  const parameter = /unrecognized parameter \[(\w+)\]/.exec(reply.errmsg);
  if (command.setParameter !== undefined && parameter !== null)
    host.unsupported.push(`not supported: servers with the parameter ${parameter[1]}`);
}

module.exports = { noteUnknown, refuseFailPoint };
