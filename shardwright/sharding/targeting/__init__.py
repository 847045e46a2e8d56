"""Targeting of operations: from a filter to ranges of the shard key, and from these to shards.

Pure functions over raw BSON. `filters.key_ranges` returns the keys that a filter's matches can have.
`targets.target_ranges` returns the shards that own such keys, and `placement_at` their owners at an earlier time.
`filters.exact_shard_key` finds filters that fix one key, and `values.is_simple` decides whether strings may be compared
as bytes. `statements` parses the statements of updates and deletes, and `writes` targets each statement of a write.

A malformed filter raises InvalidBSONError, and a value nested too deep raises Overflow. ``simple_collation`` means that
the effective collation compares strings as bytes.

May import the files beside it in `sharding`.
"""
