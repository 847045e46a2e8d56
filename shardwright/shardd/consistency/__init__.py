"""``checkMetadataConsistency``: differences between the catalog and the shards.

Owns the checks on the primary shard of a database and on each shard; they change nothing. Functions raise CommandError
if a server refuses or cannot be reached, and BackendError if the local mongod does not answer; docstrings name further
errors.
May import `context`, `local_mongod` and `orphans`.
"""
