"""The commands of the router, a file for each family, and the table of all of them.

Owns their arguments and replies, and how they are run.
May import `access`, `change_streams`, `context`, `cursors`, `ddl`, `lookup`, `operations`, `pipelines`, `placement`,
`processes`, `reads`, `replies`, `sessions`, `transactions` and `writes`.
"""
