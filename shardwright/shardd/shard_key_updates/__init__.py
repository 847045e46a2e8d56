"""Updates that may change a shard key: they are previewed, judged, and made as they were previewed.

Owns how such updates are recognised and what MongoDB allows them.
May import `exchange`, `local_mongod` and `session_history`.
"""
