"""Exchanges with other servers: an operation with mongod, and requests to the config servers and to other shards.

`term_exchange` sends one operation to mongod without sharding fields and counts the running operations. It answers only
if the operation ran in the term of its admission. `remote_sets` owns the clients of other servers, this shard's
identity and the config time, but not the metadata that is read through them. Functions raise CommandError if a server
refuses or cannot be reached, and BackendError if the local mongod does not answer; docstrings name further errors.
May import `local_mongod` and `orphans`.
"""
