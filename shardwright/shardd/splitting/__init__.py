"""Splitting chunks of this shard: by command, and by size as they grow.

Owns estimating how much is written to each chunk, finding split points, and committing splits.
May import `cluster`, `context`, `local_mongod` and `metadata`.
"""
