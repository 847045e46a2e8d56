"""Changes to collections and databases on all shards, as their coordinator or as a participant.

Owns the coordinators (in ``coordinators/``) and the participants' side. Way through: a command starts a `Coordinator`
at `CoordinatorService`, which holds its locks and runs it to the end; its commands to other shards arrive at
`participants` and `rename_participants`. ``movePrimary`` copies the database by `database_copy` and commits in a
`move_section`. May import `context`, `local_mongod` and `metadata`.
"""
