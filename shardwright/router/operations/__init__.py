"""Operations of clients under way: routed, sent to shards, and sent again when what they were routed by was stale.

Owns the `Operation`, and what the commands of several families do with it.
May import `context`, `cursors`, `placement`, `reads`, `replies`, `routing` and `writes`.
"""
