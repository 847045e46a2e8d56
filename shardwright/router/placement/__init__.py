"""Where databases and collections are, as values, and shards' errors about stale placement.

Without I/O. Owns the routing of a database and of a collection, with the version elements that go to a shard.
Imports no other room.
"""
