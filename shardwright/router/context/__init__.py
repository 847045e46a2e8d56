"""What all operations of a router process share: routing, the sender to shards, options and metrics.

Owns the objects that are created first and know neither operations nor commands.
May import `access`, `cursors`, `routing`, `sending`, `transactions` and `writes`.
"""
