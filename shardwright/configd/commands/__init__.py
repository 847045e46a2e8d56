"""The commands of the config server, in one module each.

Owns their arguments and replies; importing the package registers all of them.
May import `balancer`, `catalog`, `primary` and `shards`.
"""

from shardwright.configd.commands import (
    add_shard,
    add_shard_to_zone,
    balancer,
    balancer_reports,
    clear_jumbo_flag,
    commit_chunk_migration,
    commit_chunk_split,
    commit_chunks_merge,
    commit_create_collection,
    commit_drop_collection,
    commit_drop_database,
    configure_collection_balancing,
    create_database,
    ensure_chunk_version_is_greater_than,
    move_range,
    refresh_logical_session_cache_now,
    remove_shard,
    remove_shard_from_zone,
    remove_tags,
    set_allow_migrations,
    update_zone_key_range,
)

__all__ = [
    "add_shard",
    "add_shard_to_zone",
    "balancer",
    "balancer_reports",
    "clear_jumbo_flag",
    "commit_chunk_migration",
    "commit_chunk_split",
    "commit_chunks_merge",
    "commit_create_collection",
    "commit_drop_collection",
    "commit_drop_database",
    "configure_collection_balancing",
    "create_database",
    "ensure_chunk_version_is_greater_than",
    "move_range",
    "refresh_logical_session_cache_now",
    "remove_shard",
    "remove_shard_from_zone",
    "remove_tags",
    "set_allow_migrations",
    "update_zone_key_range",
]
