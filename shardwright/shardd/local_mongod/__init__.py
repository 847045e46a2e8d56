"""This shard's mongod: its collections, indexes and ranges, cursors, and the reserved sessions.

Owns reading and writing these without any knowledge of placement, and the collections of ``config`` that are private to
this shard.
Imports no other room.
"""
