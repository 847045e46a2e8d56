"""Splits of this shard's chunks, by command and by size.

Owns the estimates of bytes written to each chunk, the choice of split points, and the commit of splits.
May import `cluster`, `context`, `local_mongod` and `metadata`.
"""
