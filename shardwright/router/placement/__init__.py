"""Where databases and collections are, as values, and how a shard refuses an operation whose placement is out of date.

Without I/O. Owns the routing of a database and of a collection, with the version elements that go to a shard.
Imports no other room.
"""
