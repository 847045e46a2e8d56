"""The user write block of the whole cluster.

Owns the coordinator that sets it on all shards and the config servers in two phases, and its document.
May import `term`.
"""
