"""The catalog: reading it, and changing it in transactions.

Owns transactions, the catalog's indexes and identity, and its changelog. It handles shards only as documents.
Imports no other room.
"""
