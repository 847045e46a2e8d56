"""Resharding: the rules by which a collection gets another shard key while it is in use.

Owns the states, the split of the new key space, which shards a document concerns, and what a recipient writes; the
daemons act on it. May import `sharding`.
"""
