"""The resources of one term, available only while the mongod is primary.

Owns the term: its locks, and the interruption of its operations when it ends.
May import `catalog` and `shards`.
"""
