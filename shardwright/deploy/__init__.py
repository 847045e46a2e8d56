"""Starting clusters: the local launcher behind the ``shardwright`` command, and the demo that runs on it.

The launcher is a client of the mongods and daemons that it starts. It reaches them over the wire and as processes, and
imports none of the daemons' code.

Functions raise `deploy.errors.DeployError` for every problem that the user can act on. Their docstrings omit it for the
plain cases: a file that cannot be read or written, an unknown process or shard, a server that refuses or does not
answer.
"""
