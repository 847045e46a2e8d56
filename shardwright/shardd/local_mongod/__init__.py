"""This shard's mongod: its collections, indexes, ranges and cursors, and the reserved sessions.

Owns reading and writing these without any knowledge of placement, and the collections of ``config`` that are private to
this shard. Functions raise CommandError if a server refuses or cannot be reached, and BackendError if the local mongod
does not answer; docstrings name further errors.
Imports no other room.
"""
