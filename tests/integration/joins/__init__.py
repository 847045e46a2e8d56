"""Joins of sharded collections, compared with a mongod."""
