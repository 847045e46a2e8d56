"""Benchmarks: the same requests sent directly to a mongod, through the genuine router code, and through our router.

Every measurement raises `bench.loadgen.BenchError` if a target does not start, refuses a request, or replies wrongly.
"""
