"""What all components of the daemon share: its mongod, the states of namespaces, the catalog, fail points.

Owns that context, and small tools that need nothing else: commands to other shards, the changelog.
May import `cluster`, `local_mongod`, `metadata` and `orphans`.
"""
