"""Replies as bytes: those of shards, what clients see of them, and the router's own.

Without I/O. Owns the reading of replies, which decodes only what is needed.
May import `placement`.
"""
