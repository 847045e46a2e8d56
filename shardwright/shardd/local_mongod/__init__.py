"""What this shard's mongod itself holds: collections, indexes, ranges, raw cursors, and the reserved sessions.

Owns how that is read and written without any knowledge of placement, and of ``config`` what is this shard's alone.
Imports no other room.
"""
