"""Dividing aggregation pipelines between shards and a merger. Without I/O.

Owns which stages run where, the shards' and the merger's part of a pipeline, and how the results of the shards are
merged. A pipeline takes this way: `sharding.pipelines.pushdown` moves conditions and sorts to the front, `targeting`
selects the shards, `split` divides it, with `split_stages` for the stages that are divided themselves, `needed_fields`
drops what the merger does not read, and `commands` makes the requests. `router_merge` recognises what the router merges
without a mongod.

May import `placement` and `reads`.
"""
