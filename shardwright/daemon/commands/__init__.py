"""The tables of commands: the entry of a command, and finding it by name or alias.

Each daemon has a table of its own, and entries with the flags that it needs besides the common ones.
Imports no other room.
"""
