"""The read side: arguments, commands for the shards, and merging of their replies.

No I/O. Owns the targeting of reads, views, and the results merger. May import `placement`.
"""
