"""Logical sessions of clients: recording them in ``config.system.sessions``, and ending what runs in ended ones.

Owns the refresh of the session cache, and the end of cursors and transactions in sessions.
May import `context`, `operations`, `placement`, `replies`, `transactions` and `writes`.
"""
