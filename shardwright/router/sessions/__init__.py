"""The logical sessions of clients: writing them to ``config.system.sessions``, and ending those that are gone.

Owns the refresh of the session cache, and ending what runs in sessions.
May import `context`, `operations`, `placement`, `replies`, `transactions` and `writes`.
"""
