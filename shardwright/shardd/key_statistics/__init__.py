"""Which shard keys are read and written: sampling operations, and writing the numbers to the config servers.

Counting costs an operation a subtraction and a comparison; one in a hundred is looked at.
May import `context`.
"""
