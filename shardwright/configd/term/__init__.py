"""The resources of one term, available only while the mongod is primary.

Owns the term: its locks, the interruption of its operations when it ends, and its requests to donors.
May import `catalog` and `shards`.
"""
