"""Live chunk migration: moving a range of documents to another shard while clients read and write it.

Owns both sides: ``donor/`` decides and commits, ``source/`` serves documents, ``recipient/`` writes them. Functions
raise CommandError if a server refuses or cannot be reached, and BackendError if the local mongod does not answer;
docstrings name further errors.
May import `cluster`, `context`, `local_mongod`, `metadata`, `orphans`, `range_deleter` and `session_history`.
"""
