"""Read and write counts by shard key: samples of operations, written to the config servers.

Counting costs an operation a subtraction and a comparison; one in a hundred is sampled.
May import `context`.
"""
