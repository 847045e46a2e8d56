"""This shard's connections to the rest of the cluster: config servers, other shards, its identity, the config time.

Owns the clients of other servers and this shard's identity, but none of the metadata that is read there.
May import `local_mongod`.
"""
