"""Change streams on a collection, a database or the whole cluster, merged from streams on all shards.

Owns resume tokens, the order of events, and their additions and omissions at the router. Whatever reads from shards or
config servers raises CommandError if these fail; docstrings list only other errors.

May import `context`, `exec`, `operations`, `placement`, `reads`, `replies` and `routing`.
"""
