"""The shard daemon's own commands, one file per family, and the table of all of them.

Owns their arguments, replies and execution.
May import `cluster`, `consistency`, `context`, `ddl`, `exchange`, `key_statistics`, `local_mongod`, `metadata`,
`migration`, `operations`, `range_deleter`, `resharding`, `splitting` and `two_phase_commit`.
"""
