"""DDL operations on all shards: their coordinators and participants.

Owns the coordinators and the participants' side. A command starts a `Coordinator` at
`CoordinatorService`, which holds its locks and runs it to the end. Its commands to other shards arrive at
`participants`. ``movePrimary`` copies the database by `database_copy` and commits in a critical section. Functions
raise CommandError if a server refuses or cannot be reached, and BackendError if the local mongod does not answer;
docstrings name further errors.
May import `context`, `local_mongod` and `metadata`.
"""
