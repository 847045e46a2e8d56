"""The commands of the router, a file for each family, and the table of all of them.

Owns their arguments, replies and execution. The first line of a handler's docstring is its help text in
``listCommands``.

May import `access`, `change_streams`, `context`, `cursors`, `ddl`, `lookup`, `operations`, `pipelines`, `placement`,
`processes`, `reads`, `replies`, `sessions`, `transactions` and `writes`.
"""
