"""Authentication and authorization of the clients of a router.

The config servers store and resolve users and roles. This room caches them, runs the log-in conversations, and has the
table of the privileges that each command requires. Shards and config servers treat a router's operations as the
cluster's own, so this is the only check of users.

::

    access_control ▶ command_needs ▶ pipeline_needs  whether a client may run a command
    needs                                            the vocabulary of both tables
    mechanisms ▶ login                               the log-in of one connection
    user_cache ▶ authorized_user                     users with their privileges

Imports no other room.
"""
