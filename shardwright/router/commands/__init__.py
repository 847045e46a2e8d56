"""The commands of the router, a file for each family, and the table of all of them.

Owns their arguments, replies and execution. The first line of a handler's docstring is its help text in
``listCommands``. Functions raise CommandError with MongoDB's code for invalid arguments
and failed shards; docstrings list only errors that are less obvious.

May import `access`, `change_streams`, `context`, `cursors`, `ddl`, `exec`, `lookup`, `operations`, `pipelines`,
`placement`, `processes`, `reads`, `replies`, `sessions`, `transactions` and `writes`.
"""
