"""The shard daemon's own commands, a file for each family, and the table of all of them.

Owns their arguments and replies, and running them.
May import `cluster`, `consistency`, `context`, `ddl`, `exchange`, `key_statistics`, `local_mongod`, `metadata`,
`migration`, `operations`, `range_deleter`, `resharding`, `splitting` and `two_phase_commit`.
"""
