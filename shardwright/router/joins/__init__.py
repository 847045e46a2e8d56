"""Stages that join a collection which the shard that would run them does not have: ``$lookup`` and its like.

Owns what the router reads for such stages, and how it has a mongod join what it was given.
May import `cursors`, `operations`, `pipelines`, `placement`, `reads`, `replies` and `sending`.
"""
