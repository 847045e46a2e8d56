"""Shared state of all operations of a router process: routing, the sender to shards, options and metrics.

Owns the objects that are created first and depend neither on operations nor on commands.

May import `access`, `cursors`, `routing`, `sending`, `transactions` and `writes`.
"""
