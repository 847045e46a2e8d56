"""What every component of the daemon is given: its mongod, its states of namespaces, the catalog, fail points.

Owns what all share, and the small things that need nothing else: asking other shards, the changelog.
May import `cluster`, `local_mongod`, `metadata` and `orphans`.
"""
