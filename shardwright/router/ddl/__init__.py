"""What commands on collections, indexes, databases and chunks have in common.

Without I/O. Owns what shards are sent for them and how their replies become one.
May import `replies`.
"""
