"""Splits of this shard's chunks, by command and by size, and the counts of reads and writes by shard key.

Owns the estimates of bytes written to each chunk, the choice of split points, and the commit of splits. Counting for
`key_statistics` costs an operation a subtraction and a comparison; one in a hundred is sampled.
May import `context`, `exchange`, `local_mongod` and `metadata`.
"""
