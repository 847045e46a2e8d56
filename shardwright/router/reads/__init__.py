"""The read side: arguments, commands for the shards, and merging of their replies.

Without I/O. Owns which shards a read goes to, pipelines, views, and the merging of results.
May import `placement`.
"""
