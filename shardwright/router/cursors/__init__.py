"""Open cursors: the router's state between a ``find`` and its last ``getMore``.

Owns cursors, their ids, owners and end. They do not depend on operations.

May import `exec` and `replies`.
"""
