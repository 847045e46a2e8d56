"""What this shard knows of namespaces and databases: versions, critical sections, operations under way.

Owns those states, and how they are refreshed, persisted in ``config.cache.*`` and followed on secondaries.
May import `cluster`, `exchange`, `local_mongod` and `orphans`.
"""
