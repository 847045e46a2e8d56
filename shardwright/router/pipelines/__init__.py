"""Division of aggregation pipelines between shards and a merger. No I/O.

Owns the location of stages, the shards' and the merger's part of a pipeline, and the rules for merging results.
`sharding.pipelines.pushdown` first moves conditions and sorts to the front. `split` then divides the pipeline, with
`split_stages` for stages that are themselves divided. `needed_fields` drops fields that the merger does not read, and
`commands` selects the shards and builds the requests. `router_merge` recognizes results that the router can merge
without a mongod.

May import `placement` and `reads`.
"""
