"""Where data is and which shards there are, as this router knows it: read from the config servers and cached.

Owns the clients of the config servers and of the shards' replica sets.
May import `placement`.
"""
