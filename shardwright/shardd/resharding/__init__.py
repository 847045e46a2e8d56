"""Resharding on a shard: its donors and recipients, and the commit on both sides.

Owns ``config.localReshardingOperations.*`` and the temporary collections.
May import `context`, `exchange`, `local_mongod`, `metadata`, `migration` and `session_history`.
"""
