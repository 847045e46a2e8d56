"""Measurements: the same work sent to a mongod directly, through the genuine router code, and through our router."""
