"""Who the clients of a router are, and what they may do.

Users and roles are on the config servers, which resolve them; this room caches them, holds the conversations of
log-ins, and has the table of what each command needs. To shards and config servers, a router's operations are the
cluster's own, so this is the only check of users.
Imports no other room.
"""
