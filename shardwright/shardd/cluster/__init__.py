"""This shard's connections to the rest of the cluster: config servers, other shards, its identity, the config time.

Owns the clients of other servers and this shard's identity, but no metadata read through them. Functions raise
CommandError if a server refuses or cannot be reached, and BackendError if the local mongod does not answer; docstrings
name further errors.
May import `local_mongod`.
"""
