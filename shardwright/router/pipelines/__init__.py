"""Dividing aggregation pipelines between shards and a merger.

Without I/O. Owns which stages run where, the two halves of a pipeline, and how the results of the shards are merged.
May import `placement` and `reads`.
"""
