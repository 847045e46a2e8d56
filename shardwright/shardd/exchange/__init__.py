"""One operation's exchange with mongod: without sharding fields, answered only if it ran in the term of its admission.

Owns sending an operation to mongod, receiving its reply, and counting the running operations.
May import `orphans`.
"""
