"""Starting clusters: the local launcher behind the ``shardwright`` command, and the demo that runs on it.

The launcher is a client of what it starts. It deals with mongods and daemons over the wire and as processes, and
imports none of the daemons' code.
"""
