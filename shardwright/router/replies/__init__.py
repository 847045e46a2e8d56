"""Replies as bytes: the shards' replies, their form for clients, and the router's own.

No I/O. Owns the reading of replies, which decodes only needed parts. May import `placement`.
"""
