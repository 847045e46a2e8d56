"""Replication between clusters: a client that copies a source into a target and follows its changes.

Modules that decide are marked as free of I/O; the others act on their decisions. Daemons are reached over the wire
only.
"""
