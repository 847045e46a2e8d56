"""Orphans: documents on this shard that it does not own, which operations must not see.

Owns the ranges that may hold orphans, and the filters that hide them. `range_deleter` deletes them.
May import `local_mongod`.
"""
