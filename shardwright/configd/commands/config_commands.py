"""The table of the commands that only a config server has."""

from typing import Final

from shardwright.configd.commands import (
    balancing,
    chunk_commits,
    chunk_moves,
    cluster_settings,
    collections,
    databases,
    shard_key_changes,
    shards,
)
from shardwright.configd.commands.operation import ConfigCommand, WriteConcernRule
from shardwright.daemon.command_table import CommandTable
from shardwright.daemon.sidecar.access import Needed

ANY, UNSUPPORTED = WriteConcernRule.ANY, WriteConcernRule.UNSUPPORTED

# fmt: off
CONFIG_COMMANDS: Final = CommandTable(
    (
        # balancing
        ConfigCommand("_configsvrBalancerStart", balancing.balancer_start, write_concern=UNSUPPORTED),
        ConfigCommand("_configsvrBalancerStop", balancing.balancer_stop, write_concern=UNSUPPORTED),
        ConfigCommand("_configsvrBalancerStatus", balancing.balancer_status, write_concern=UNSUPPORTED),
        ConfigCommand("_configsvrBalancerCollectionStatus", balancing.balancer_collection_status,
            write_concern=UNSUPPORTED, names_namespace=True),
        ConfigCommand("_configsvrBalancerExplain", balancing.balancer_explain, write_concern=UNSUPPORTED),
        ConfigCommand("_configsvrConfigureCollectionBalancing", balancing.configure_collection_balancing,
            write_concern=UNSUPPORTED, names_namespace=True),
        # chunk_commits
        ConfigCommand("_configsvrCommitChunkMigration", chunk_commits.commit_chunk_migration, names_namespace=True),
        ConfigCommand("_configsvrCommitChunkSplit", chunk_commits.commit_chunk_split, names_namespace=True),
        ConfigCommand("_configsvrCommitChunksMerge", chunk_commits.commit_chunks_merge, names_namespace=True),
        # chunk_moves
        ConfigCommand("_configsvrMoveChunk", chunk_moves.move_chunk),
        ConfigCommand("_configsvrMoveRange", chunk_moves.move_range, names_namespace=True),
        # chunk_commits: repairs
        ConfigCommand("_configsvrClearJumboFlag", chunk_commits.clear_jumbo_flag, names_namespace=True),
        ConfigCommand("_configsvrEnsureChunkVersionIsGreaterThan", chunk_commits.ensure_chunk_version_is_greater_than,
            names_namespace=True),
        ConfigCommand("_configsvrRepairShardedCollectionChunksHistory",
            chunk_commits.repair_sharded_collection_chunks_history, names_namespace=True),
        # cluster_settings
        ConfigCommand("setFeatureCompatibilityVersion", cluster_settings.set_feature_compatibility_version,
            arguments=("confirm",), write_concern=ANY, needed=Needed("setFeatureCompatibilityVersion")),
        ConfigCommand("_configsvrSetClusterParameter", cluster_settings.set_cluster_parameter),
        ConfigCommand("_configsvrSetUserWriteBlockMode", cluster_settings.set_user_write_block_mode_of_cluster),
        ConfigCommand("setUserWriteBlockMode", cluster_settings.set_user_write_block_mode, write_concern=UNSUPPORTED,
            needed=Needed("setUserWriteBlockMode")),
        ConfigCommand("_getUserCacheGeneration", cluster_settings.get_user_cache_generation, write_concern=UNSUPPORTED),
        ConfigCommand("refreshLogicalSessionCacheNow", cluster_settings.refresh_logical_session_cache_now,
            write_concern=UNSUPPORTED),
        # collections
        ConfigCommand("_configsvrCommitCreateCollection", collections.commit_create_collection, names_namespace=True),
        ConfigCommand("_configsvrCommitDropCollection", collections.commit_drop_collection, names_namespace=True),
        ConfigCommand("_configsvrRenameCollectionMetadata", collections.rename_collection_metadata),
        ConfigCommand("_configsvrCollMod", collections.coll_mod, admin_only=False),
        ConfigCommand("_configsvrSetAllowMigrations", collections.set_allow_migrations, names_namespace=True),
        # databases
        ConfigCommand("_configsvrCreateDatabase", databases.create_database, names_namespace=True),
        ConfigCommand("_configsvrCommitDropDatabase", databases.commit_drop_database, names_namespace=True),
        ConfigCommand("_configsvrCommitMovePrimary", databases.commit_move_primary, names_namespace=True),
        # shard_key_changes
        ConfigCommand("_configsvrReshardCollection", shard_key_changes.reshard_collection),
        ConfigCommand("_configsvrAbortReshardCollection", shard_key_changes.abort_reshard_collection),
        ConfigCommand("_configsvrCommitReshardCollection", shard_key_changes.commit_reshard_collection),
        ConfigCommand("_configsvrCleanupReshardCollection", shard_key_changes.cleanup_reshard_collection,
            write_concern=UNSUPPORTED),
        ConfigCommand("_configsvrRefineCollectionShardKey", shard_key_changes.refine_collection_shard_key),
        # shards
        ConfigCommand("_configsvrAddShard", shards.add_shard),
        ConfigCommand("_configsvrRemoveShard", shards.remove_shard),
        # upgrade
        ConfigCommand("_configsvrFinishUpgrade", cluster_settings.finish_upgrade, arguments=("dryRun",)),
        # balancing: zones
        ConfigCommand("_configsvrAddShardToZone", balancing.add_shard_to_zone),
        ConfigCommand("_configsvrRemoveShardFromZone", balancing.remove_shard_from_zone),
        ConfigCommand("_configsvrUpdateZoneKeyRange", balancing.update_zone_key_range, names_namespace=True),
        ConfigCommand("_configsvrRemoveTags", balancing.remove_tags, names_namespace=True),
    )
)
# fmt: on
"""All commands, grouped by the file of their handlers and its parts."""
