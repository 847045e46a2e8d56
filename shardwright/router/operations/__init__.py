"""Operations in progress: routed, sent to shards, and retried when their routing was stale.

Owns the `Operation`, and steps shared by several families of commands.
May import `context`, `cursors`, `pipelines`, `placement`, `reads`, `replies`, `routing`, `transactions` and
`writes`.
"""
