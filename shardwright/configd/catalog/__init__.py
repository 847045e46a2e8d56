"""The catalog: reading it, and changing it in transactions, which nobody else does.

Owns transactions, the catalog's indexes and identity, and its changelog; of shards it knows only their documents.
Imports no other room.
"""
