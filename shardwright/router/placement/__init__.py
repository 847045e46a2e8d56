"""The location of databases and collections, as values, and shards' errors about stale placement.

No I/O. Owns the routing of databases and collections, with the version elements for shards, and the targeting of reads.
Imports no other room.
"""
