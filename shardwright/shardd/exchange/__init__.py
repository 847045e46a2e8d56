"""One operation's exchange with mongod: without sharding fields, and answered only if its term has lasted.

Owns sending an operation to mongod and receiving its reply, and counting the running operations.
May import `orphans`.
"""
