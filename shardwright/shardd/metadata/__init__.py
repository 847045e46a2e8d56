"""The state of namespaces and databases on this shard: versions, critical sections, running operations.

Owns those states, their refresh, their persistence in ``config.cache.*``, and their replication to secondaries.
Functions raise CommandError if a server refuses or cannot be reached, and BackendError if the local mongod does not
answer; docstrings name further errors.
May import `exchange`, `local_mongod` and `orphans`.
"""
