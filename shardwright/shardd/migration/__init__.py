"""Live chunk migration: moving a range of documents to another shard while clients read and write it.

Owns both sides: ``donor/`` decides and commits, ``source/`` hands out documents, ``recipient/`` writes them.
May import `cluster`, `context`, `local_mongod`, `metadata`, `orphans`, `range_deleter` and `session_history`.
"""
