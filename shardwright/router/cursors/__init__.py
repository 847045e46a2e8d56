"""Open cursors: the router's state between a ``find`` and its last ``getMore``.

Owns cursors on one shard and on several, their ids, owners and end. They do not depend on operations.

May import `reads`, `replies` and `sending`.
"""
