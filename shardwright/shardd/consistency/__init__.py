"""Finding damage: what differs between the catalog and the shards (``checkMetadataConsistency``).

Owns the checks on the primary shard of a database and on each shard; they change nothing.
May import `context`, `local_mongod` and `orphans`.
"""
