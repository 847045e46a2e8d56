"""The catalog: reading it, and changing it in transactions.

Owns transactions, chunk counts, the feature version and the changelog. It handles shards only as documents.
Imports no other room.
"""
