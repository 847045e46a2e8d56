"""The read side: arguments, commands for the shards, and merging of their replies.

No I/O. Owns views and the results merger. Functions raise CommandError with MongoDB's code for
invalid arguments; docstrings list only codes that are less obvious. May import `placement`.
"""
