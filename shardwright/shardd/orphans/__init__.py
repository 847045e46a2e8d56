"""Orphans: documents on this shard that it does not own, and how operations are kept from seeing them.

Owns which ranges may hold orphans and the filters that hide them. Deleting them is `range_deleter`'s.
May import `local_mongod`.
"""
