"""What this shard knows about namespaces and databases: versions, critical sections, operations under way.

Owns those states, refreshing them, persisting them in ``config.cache.*``, and following that on secondaries.
May import `cluster`, `exchange`, `local_mongod` and `orphans`.
"""
