"""Change streams on a collection, a database or the whole cluster, merged from streams on all shards.

Owns resume tokens, the order of events, and what the router adds to events or leaves out.
May import `context`, `cursors`, `operations`, `placement`, `reads`, `replies` and `routing`.
"""
