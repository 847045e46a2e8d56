"""Replication between clusters: a client that copies a source into a target and follows its changes.

Modules marked "Pure" decide and do no I/O; the others act on their decisions. Daemons are reached over the wire only.
"""
