"""Open cursors: what the router keeps between a ``find`` and its last ``getMore``.

Owns cursors on one shard and on several, their ids, owners and end. They know nothing of operations.
May import `reads`, `replies` and `sending`.
"""
