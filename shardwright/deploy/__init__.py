"""Starting clusters: the local launcher behind the ``shardwright`` command, and the demo that runs on it.

The launcher is a client of the mongods and daemons that it starts. It reaches them over the wire and as processes, and
imports none of the daemons' code.

Functions raise `deploy.errors.DeployError` for every problem that the user can act on. Their docstrings omit it for the
plain cases: a file that cannot be read or written, an unknown process or shard, a server that refuses or does not
answer.

::

    cli ▶ command_line ▶ command_parser              the command, its options, shell completion
    cluster ▶ up, shards, internal_authentication    the cluster of one directory: an operation for each command
    supervisor ▶ mongod, processes                   its processes: command lines, readiness, pid files, signals
    layout ▶ cluster_state ▶ topology                its directory, its settings, its processes as data
    access, certs ▶ authority                        its keys, users and certificates
    status, balancing, observing                     views of it in the terminal, and for Prometheus and Grafana
    doctor ▶ doctor_checks ▶ doctor_facts            its faults, with remedies
    planned_files ▶ host_files ▶ description         a cluster on several hosts: `plan`
    joining ▶ member_states                          `init-set` and `join`, on each of these hosts
"""
