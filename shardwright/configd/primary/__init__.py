"""What there is to work with while the mongod is primary, and only then.

Owns the term: its locks, and the interruption of its operations when it ends.
May import `catalog` and `shards`.
"""
