"""Write batches: inserts, updates and deletes, divided among shards, and the merged outcome.

Without I/O. A batch is kept as the client's bytes. `batch` reads the command, and `targeted_batch` finds the shards of
each statement and builds their messages. `run` decides what is sent in each round, and `outcome` keeps the results and
builds the client's reply.
Imports no other room.
"""
