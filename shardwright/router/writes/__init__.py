"""The write side: batches of inserts, updates and deletes, divided among shards, and the merged outcome.

Without I/O. A batch is kept as the client's bytes. `batch` reads the command, `targeting` determines the shards of each
statement, `run` decides which are sent next and keeps their outcomes, `reply` and `merge` build the client's reply.
Imports no other room.
"""
