"""Execution of reads: stages that produce documents, from cursors on shards up to the root that a client reads.

Owns the `Stage`, the stages that depend on no operation, and the cursors on shards that they read. The stages of joins
are in `lookup`, the stage of change streams in `change_streams`.

May import `reads`, `replies` and `sending`.
"""
