"""The shard daemon's own commands, with one module for each or for a small family.

Owns their arguments and replies, and running them; importing the package registers all of them.
May import `cluster`, `consistency`, `context`, `ddl`, `exchange`, `local_mongod`, `metadata`, `migration`,
`operations`, `range_deleter`, `resharding`, `splitting` and `two_phase_commit`.
"""

from shardwright.shardd.commands import (
    balancing_statistics_command,
    chunk_commands,
    cleanup_orphaned_command,
    commit_commands,
    consistency_commands,
    database_move_commands,
    ddl_commands,
    fail_point_commands,
    identity_commands,
    migration_recipient_commands,
    migration_source_commands,
    move_range_command,
    operation_commands,
    parameter_commands,
    participant_commands,
    resharding_commands,
    session_mods_command,
    user_write_block_command,
    version_commands,
)

__all__ = [
    "balancing_statistics_command",
    "chunk_commands",
    "cleanup_orphaned_command",
    "commit_commands",
    "consistency_commands",
    "database_move_commands",
    "ddl_commands",
    "fail_point_commands",
    "identity_commands",
    "migration_recipient_commands",
    "migration_source_commands",
    "move_range_command",
    "operation_commands",
    "parameter_commands",
    "participant_commands",
    "resharding_commands",
    "session_mods_command",
    "user_write_block_command",
    "version_commands",
]
