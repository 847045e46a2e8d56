"""Replies as bytes: what a shard answered, what a client gets of it, and those that the router makes by itself.

Without I/O. Owns how a reply is read without decoding more of it than is wanted.
May import `placement`.
"""
