"""The audit log of all daemons: its file, its events, and their connections.

Each daemon decides which operations of clients are events, and supplies the authenticated users.
May import the files beside it in `daemon`.
"""
