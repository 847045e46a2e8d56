"""The audit log, which all daemons may write: its file, its events, and what they tell of connections.

Each daemon decides which clients' operations are events, and knows who has logged in.
May import the files beside it in `daemon`.
"""
