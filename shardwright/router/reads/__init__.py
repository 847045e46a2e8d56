"""The read side: arguments, what is sent to the shards, and how their answers become one.

Without I/O. Owns which shards a read goes to, pipelines, views, and the merging of results.
May import `placement`.
"""
