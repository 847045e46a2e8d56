"""The common parts of commands on collections, indexes, databases and chunks. No I/O.

Owns the commands to shards and the merge of their replies. May import `replies`.
"""
