"""The routing information of this router: databases, collections and shards, cached from the config servers.

Owns the clients of the config servers and of the shards' replica sets.
May import `placement`.
"""
