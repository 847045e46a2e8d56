"""Benchmarks: the same requests sent directly to a mongod, through the genuine router code, and through our router."""
