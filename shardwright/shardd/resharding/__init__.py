"""Resharding on a shard: its parts as donor and as recipient, and what both do at the commit.

Owns ``config.localReshardingOperations.*`` and the temporary collections. May import `cluster`, `context`,
`local_mongod`, `metadata`, `migration` and `session_history`.
"""
