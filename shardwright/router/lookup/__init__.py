"""Stages that read collections which are not on their shard: ``$lookup``, ``$graphLookup``, ``$unionWith``, ``$facet``.

Owns the reads of the router for such stages, and the pipelines that make a mongod join the results.

`aggregate` is the entry point. It runs the first stages as usual. `stages` then runs the others one after another on
their documents, either on a mongod (`mongod_stages`) or by reading other collections (`lookup_step`, `graph_lookup`).
`environment` has their shared parts, and `pipeline_input` the commands that carry documents to a mongod. Functions
raise CommandError if an aggregation fails; docstrings list only other errors.

May import `cursors`, `exec`, `operations`, `pipelines`, `placement`, `reads` and `replies`.
"""
