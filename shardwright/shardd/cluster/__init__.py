"""The rest of the cluster as a shard reaches it: config servers, other shards' sets, identity, config time.

Owns the clients of other servers and what this shard is in the cluster; nothing of what is read there.
May import `local_mongod`.
"""
