"""Logical sessions of clients: their records in ``config.system.sessions``, and the end of their work here.

Owns the refresh of the session cache, and the end of cursors and transactions in sessions.
May import `context`, `operations`, `placement`, `replies`, `transactions` and `writes`.
"""
