"""The logical sessions of clients: writing them to ``config.system.sessions``, and ending those that are gone.

Owns the refresh of the session cache.
May import `context`, `operations`, `placement`, `replies` and `writes`.
"""
