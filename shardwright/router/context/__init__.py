"""What all operations of a router process are given: where data is, how shards are reached, how the router was started.

Owns what is made first and knows nothing of operations and commands.
May import `cursors`, `routing` and `sending`.
"""
