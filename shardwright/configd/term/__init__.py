"""The resources of one term, available only while the mongod is primary, and the connections to shards.

Owns the term: its locks, the interruption of its operations when it ends, and its clients of shards.
May import `catalog`.
"""
