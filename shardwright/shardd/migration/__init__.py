"""Live chunk migration: moving a range of documents to another shard while clients read and write it.

Owns both sides: ``donor/`` serves documents, decides and commits, ``recipient/`` writes them. The unsharded collections
of a database move in the same way (`moved_database`). Functions raise CommandError if a server refuses or cannot be
reached, and BackendError if the local mongod does not answer; docstrings name further errors.
May import `context`, `exchange`, `local_mongod`, `metadata`, `orphans`, `range_deleter` and `session_history`.
"""
