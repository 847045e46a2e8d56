"""Updates that may change a shard key: they are previewed, checked, and executed exactly as previewed.

Owns the detection of such updates, and MongoDB's rules for them.
May import `exchange`, `local_mongod` and `session_history`.
"""
