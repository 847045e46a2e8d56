"""Replies as bytes: the shards' replies, their form for clients, and the router's own.

Without I/O. Owns the reading of replies, which decodes only what is needed.
May import `placement`.
"""
