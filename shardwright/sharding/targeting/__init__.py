"""Which shards an operation goes to: from a filter to ranges of the shard key, and from those to shards.

Pure functions over raw BSON. `filters.key_ranges` says which keys a filter's matches can have, `targets.target_ranges`
which shards own such keys, `past_placement` which owned them at an earlier time, `exact_key` whether a filter pins down
one key or one ``_id``, and `collation` when strings may be compared as bytes. `statements` parses the statements of
updates and deletes, `writes` says where each statement of a write goes.
May import the files beside it in `sharding`.
"""
