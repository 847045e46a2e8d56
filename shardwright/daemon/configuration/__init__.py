"""The configuration of the daemons: one table of options, and the command line, environment and file that set them.

Owns names, types, defaults and precedence. The effect of a value is up to its readers.
May import the files beside it in `daemon`.
"""
