"""Time-series collections on one shard and on several."""
