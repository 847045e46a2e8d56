"""Updates that may change a shard key: they are previewed, checked, and executed exactly as previewed.

Owns how such updates are recognised, and the rules that MongoDB has for them.
May import `exchange`, `local_mongod` and `session_history`.
"""
