"""Replication between clusters: a client that copies a source into a target and follows its changes.

The modules that decide say that they are free of I/O; the others act on what these decide. Daemons are reached over the
wire only.
"""
