"""The state of namespaces and databases on this shard: versions, critical sections, running operations.

Owns those states, refreshing them, persisting them in ``config.cache.*``, and following that on secondaries.
May import `cluster`, `exchange`, `local_mongod` and `orphans`.
"""
