"""Operations in progress: routed, sent to shards, and retried when their routing was stale.

Owns the `Operation`, and steps shared by several families of commands. Unless a docstring says otherwise, functions
raise CommandError if a shard or the config servers fail.

May import `context`, `cursors`, `pipelines`, `placement`, `reads`, `replies`, `routing`, `transactions` and
`writes`.
"""
