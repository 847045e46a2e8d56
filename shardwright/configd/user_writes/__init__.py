"""Blocking the writes of users in the whole cluster.

Owns the coordinator that has all shards and the config servers do so in two phases, and its document.
May import `term`.
"""
