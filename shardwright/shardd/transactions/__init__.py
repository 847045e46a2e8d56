"""Multi-document transactions on this shard: the open ones, their effects, and the permission to end them.

Owns the table of open transactions, and the additions of a shard to the replies of a plain mongod.
May import `context`, `exchange`, `metadata`, `orphans` and `session_history`.
"""
