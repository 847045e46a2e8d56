"""The common part of configd and shardd as sidecars of a mongod: relaying, mirroring its hello, following its role.

Owns the connection between a daemon and its mongod; the daemon decides what to do with requests.

::

    handler ▶ access, client_authentication, audit   a request: who sends it, and whether it is allowed
    sidecar ▶ hello ▶ member_addresses               the mongod's role and members, as clients see them
    role_certainty, primary_watch                    changes of the role, and a primary without a daemon
    mongod ▶ term_fence                              each client's connection to the mongod; the daemon's own commands,
                                                     and the terms that they belong to
    command_sessions, noop_writer, user_write_block  commands once, cluster times, blocked writes

May import the files beside it in `daemon`.
"""
