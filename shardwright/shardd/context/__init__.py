"""State shared by all components of the daemon: its mongod, namespace states, the catalog, fail points.

Owns that context, and small tools that need nothing else: commands to other shards, the changelog. Functions raise
CommandError if a server refuses or cannot be reached, and BackendError if the local mongod does not answer; docstrings
name further errors.
May import `exchange`, `local_mongod`, `metadata` and `orphans`.
"""
