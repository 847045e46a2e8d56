"""Aggregation pipelines, analysed as far as targeting needs it. Without I/O.

`pipeline` parses stages, and `pushdown` moves conditions and sorts to the front, as MongoDB's routers do before they
target. `stages_of_buckets` turns reads of measurements into reads of buckets, and `leading_filter` finds the condition
that all documents have to pass.

May import `sharding` and `targeting`.
"""
