"""The table of the commands that the shard daemon answers itself; all others go to its mongod."""

from typing import Final

from shardwright.daemon.command_table import CommandTable
from shardwright.daemon.sidecar.access import Needed
from shardwright.shardd.commands import (
    ddl_commands,
    metadata_commands,
    migration_commands,
    resharding_commands,
    server_commands,
)
from shardwright.shardd.commands.command import ShardCommand

# fmt: off
SHARD_COMMANDS: Final = CommandTable(
    (
        # server_commands: two-phase commits
        ShardCommand("coordinateCommitTransaction", server_commands.coordinate_commit_transaction, admin_only=True),
        # migration_commands: databases
        ShardCommand("_shardsvrMovePrimaryReady", migration_commands.move_primary_ready),
        ShardCommand("_shardsvrMovePrimaryReceive", migration_commands.move_primary_receive),
        ShardCommand("_shardsvrMovePrimaryStatus", migration_commands.move_primary_status),
        ShardCommand("_shardsvrMovePrimaryFinish", migration_commands.move_primary_finish),
        ShardCommand("_shardsvrMovePrimaryEnd", migration_commands.move_primary_end),
        ShardCommand("_shardsvrMovePrimaryClone", migration_commands.move_primary_clone, admin_only=True,
            is_interruptible=True),
        ShardCommand("_shardsvrMovePrimaryMods", migration_commands.move_primary_mods, admin_only=True,
            is_interruptible=True),
        # ddl_commands
        ShardCommand("_shardsvrCreateCollection", ddl_commands.create_collection, is_ddl=True),
        ShardCommand("_shardsvrDropCollection", ddl_commands.drop_collection, is_ddl=True),
        ShardCommand("_shardsvrDropDatabase", ddl_commands.drop_database, is_ddl=True),
        ShardCommand("_shardsvrRenameCollection", ddl_commands.rename_collection, is_ddl=True),
        ShardCommand("_shardsvrRefineCollectionShardKey", ddl_commands.refine_collection_shard_key, is_ddl=True),
        ShardCommand("_shardsvrReshardCollection", ddl_commands.reshard_collection, is_ddl=True, admin_only=True),
        ShardCommand("_shardsvrCollMod", ddl_commands.modify_collection, is_ddl=True),
        ShardCommand("_shardsvrCreateIndexes", ddl_commands.create_indexes, is_ddl=True),
        ShardCommand("_shardsvrDropIndexes", ddl_commands.drop_indexes, is_ddl=True),
        ShardCommand("_shardsvrMovePrimary", ddl_commands.move_primary, admin_only=True),
        ShardCommand("_shardsvrSetAllowMigrations", ddl_commands.set_allow_migrations, is_ddl=True),
        # metadata_commands: checks of local data
        ShardCommand("cleanupOrphaned", metadata_commands.cleanup_orphaned, admin_only=True, is_interruptible=True,
            needed=Needed("cleanupOrphaned")),
        ShardCommand("_shardsvrCheckMetadataConsistency", metadata_commands.check_metadata_consistency, is_ddl=True),
        ShardCommand("_shardsvrCheckMetadataConsistencyParticipant",
            metadata_commands.check_metadata_consistency_participant),
        ShardCommand("_shardsvrGetStatsForBalancing", metadata_commands.get_stats_for_balancing, admin_only=True,
            is_interruptible=True),
        # metadata_commands
        ShardCommand("getShardVersion", metadata_commands.get_shard_version, admin_only=True, primary_only=False,
            needed=Needed("getShardVersion", on_collection=True)),
        ShardCommand("getDatabaseVersion", metadata_commands.get_database_version, admin_only=True, primary_only=False),
        ShardCommand("_flushRoutingTableCacheUpdates", metadata_commands.flush_routing_table, admin_only=True),
        ShardCommand("_flushRoutingTableCacheUpdatesWithWriteConcern",
            metadata_commands.flush_routing_table_with_write_concern, admin_only=True),
        ShardCommand("_flushDatabaseCacheUpdates", metadata_commands.flush_database),
        ShardCommand("_flushDatabaseCacheUpdatesWithWriteConcern", metadata_commands.flush_database_with_write_concern),
        ShardCommand("splitChunk", metadata_commands.split_chunk, admin_only=True),
        ShardCommand("waitForOngoingChunkSplits", metadata_commands.wait_for_ongoing_chunk_splits, primary_only=False,
            needs_identity=False, is_interruptible=True),
        ShardCommand("mergeChunks", metadata_commands.merge_chunks, admin_only=True),
        # migration_commands: ranges
        ShardCommand("_migrateClone", migration_commands.migrate_clone, admin_only=True, is_interruptible=True),
        ShardCommand("_transferMods", migration_commands.transfer_mods, admin_only=True, is_interruptible=True),
        ShardCommand("_recvChunkStart", migration_commands.recv_chunk_start, admin_only=True),
        ShardCommand("_recvChunkStatus", migration_commands.recv_chunk_status, admin_only=True),
        ShardCommand("_recvChunkCommit", migration_commands.recv_chunk_commit, admin_only=True),
        ShardCommand("_recvChunkReleaseCritSec", migration_commands.recv_chunk_release_critical_section,
            admin_only=True),
        ShardCommand("_recvChunkAbort", migration_commands.recv_chunk_abort, admin_only=True),
        ShardCommand("_shardsvrFinishRangeDeletion", migration_commands.finish_range_deletion, admin_only=True),
        ShardCommand("_shardsvrDigestRange", migration_commands.digest_range, admin_only=True),
        ShardCommand("_shardsvrMoveRange", migration_commands.move_range, admin_only=True),
        ShardCommand("_getNextSessionMods", migration_commands.get_next_session_mods, admin_only=True),
        # ddl_commands: participants
        ShardCommand("_shardsvrCreateCollectionParticipant", ddl_commands.create_collection_participant),
        ShardCommand("_shardsvrDropCollectionParticipant", ddl_commands.drop_collection_participant),
        ShardCommand("_shardsvrDropDatabaseParticipant", ddl_commands.drop_database_participant),
        ShardCommand("_shardsvrCollModParticipant", ddl_commands.coll_mod_participant),
        ShardCommand("_shardsvrParticipantBlock", ddl_commands.participant_block),
        ShardCommand("_shardsvrRenameCollectionParticipant", ddl_commands.rename_collection_participant),
        ShardCommand("_shardsvrRenameCollectionParticipantUnblock", ddl_commands.end_rename_of_participant),
        # resharding_commands
        ShardCommand("_shardsvrReshardingDonate", resharding_commands.resharding_donate, admin_only=True),
        ShardCommand("_shardsvrReshardingReceive", resharding_commands.resharding_receive, admin_only=True),
        ShardCommand("_shardsvrReshardingOperationTime", resharding_commands.resharding_operation_time,
            admin_only=True),
        ShardCommand("_shardsvrReshardingHold", resharding_commands.resharding_hold, admin_only=True),
        ShardCommand("_shardsvrCommitReshardCollection", resharding_commands.commit_reshard_collection,
            admin_only=True),
        ShardCommand("_shardsvrAbortReshardCollection", resharding_commands.abort_reshard_collection, admin_only=True),
        ShardCommand("_shardsvrDropCollectionIfUUIDNotMatching",
            resharding_commands.drop_collection_if_uuid_not_matching),
        ShardCommand("_shardsvrReshardingOpenSource", resharding_commands.resharding_open_source, admin_only=True),
        ShardCommand("_shardsvrReshardingClone", resharding_commands.resharding_clone, admin_only=True,
            is_interruptible=True),
        ShardCommand("_shardsvrReshardingMods", resharding_commands.resharding_mods, admin_only=True,
            is_interruptible=True),
        ShardCommand("_shardsvrReshardingSessionHistory", resharding_commands.resharding_session_history,
            admin_only=True, is_interruptible=True),
        # server_commands
        ShardCommand("_addShard", server_commands.add_shard, admin_only=True, needs_identity=False),
        ShardCommand("shardingState", server_commands.sharding_state, admin_only=True, primary_only=False,
            needs_identity=False, needed=Needed("shardingState")),
        ShardCommand("setParameter", server_commands.set_parameters, admin_only=True, primary_only=False,
            needs_identity=False, needed=Needed("setParameter")),
        ShardCommand("getParameter", server_commands.get_parameters, admin_only=True, primary_only=False,
            needs_identity=False, needed=Needed("getParameter")),
        ShardCommand("configureFailPoint", server_commands.configure_fail_point, admin_only=True, primary_only=False,
            needs_identity=False),
        ShardCommand("waitForFailPoint", server_commands.wait_for_fail_point, admin_only=True, primary_only=False,
            needs_identity=False, is_interruptible=True),
        ShardCommand("currentOp", server_commands.current_op, admin_only=True, primary_only=False,
            needs_identity=False, is_interruptible=True, needed=Needed("inprog")),
        ShardCommand("killOp", server_commands.kill_op, admin_only=True, primary_only=False, needs_identity=False,
            needed=Needed("killop")),
        ShardCommand("_shardsvrSetUserWriteBlockMode", server_commands.set_user_write_block_mode_of_shard,
            admin_only=True),
        ShardCommand("setUserWriteBlockMode", server_commands.set_user_write_block_mode, admin_only=True,
            primary_only=False, needs_identity=False, needed=Needed("setUserWriteBlockMode")),
    )
)
# fmt: on
"""All commands, grouped by the file of their handlers and its parts."""
