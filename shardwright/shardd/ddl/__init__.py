"""Changes to collections and databases on all shards, as their coordinator or as a participant.

Owns the coordinators (in ``coordinators/``), the participants' side, and dropping.
May import `context`, `local_mongod` and `metadata`.
"""
