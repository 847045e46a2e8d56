"""Changes of collections and databases on all shards, coordinated or as a participant.

Owns the coordinators (in ``coordinators/``), what participants do for them, and dropping.
May import `context`, `local_mongod` and `metadata`.
"""
