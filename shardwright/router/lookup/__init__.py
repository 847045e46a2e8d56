"""Stages that read a collection which their shard does not have: ``$lookup``, ``$graphLookup``, ``$unionWith``,
``$facet``.

Owns what the router reads for such stages, and how it makes a mongod join the results.

`aggregate` is the way in. It runs the first stages as usual, then `stages` runs the others one after another on a
stream of documents (`streams`): on a mongod (`mongod_stages`), or by reading other collections (`lookup_step`,
`graph_lookup`). `environment` has what all of them share, `pipeline_input` the commands that carry documents to a
mongod.

May import `cursors`, `operations`, `pipelines`, `placement`, `reads`, `replies` and `sending`.
"""
