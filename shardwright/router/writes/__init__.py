"""The write side: batches of inserts, updates and deletes divided over shards and put together again.

Without I/O. A batch is kept as the client's bytes. `batch` reads the command, `statements` one statement, `targeting`
says where each goes, `run` which statements are sent next and what became of them, `reply` and `merge` what the client
is told.
Imports no other room.
"""
