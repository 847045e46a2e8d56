"""The write side of the router: batches of inserts, updates and deletes divided over shards and put together again.

A batch is kept as the client's bytes. `batch` reads the command, `statements` one statement, `targeting` says where
each goes, `run` which statements are sent next and what became of them, `reply` and `merge` what the client is told.
All of that is pure; `execute` does the sending.
"""
