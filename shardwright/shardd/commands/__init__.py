"""The shard daemon's own commands, one file per family, and the table of all of them.

Owns their arguments, replies and execution, and the checks of ``checkMetadataConsistency``, which change nothing.
May import `context`, `ddl`, `exchange`, `local_mongod`, `metadata`, `migration`, `operations`, `orphans`,
`range_deleter`, `resharding`, `splitting` and `two_phase_commit`.
"""
