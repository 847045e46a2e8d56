"""Aggregation pipelines as far as targeting needs them. Without I/O.

`pipeline` parses stages, `pushdown` moves conditions and sorts to the front, as MongoDB's routers do before they
target, `reads_of_buckets` turns reads of measurements into reads of buckets, and `leading_filter` finds the condition
that all documents have to pass.
May import `sharding` and `targeting`.
"""
