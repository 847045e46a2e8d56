"""Resharding: the rules by which a collection gets another shard key while it is in use.

Owns the states, the split of the new key space, the shards that a document concerns, and the writes of a recipient; the
daemons act on it. May import `sharding`.
"""
