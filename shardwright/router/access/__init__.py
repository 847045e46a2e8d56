"""Who the clients of a router are, and what they may do.

Users and roles are on the config servers, which resolve them; this room caches them, holds the conversations of
log-ins, and has the table of what each command needs. To everybody else all operations of a router are those of the
cluster itself: what is not refused here is refused nowhere.
Imports no other room.
"""
