"""Multi-document transactions on this shard: which are open, what they have done, and who may end them.

Owns the table of open transactions, and what a shard adds to the replies of a plain mongod.
May import `context`, `exchange`, `metadata`, `orphans` and `session_history`.
"""
