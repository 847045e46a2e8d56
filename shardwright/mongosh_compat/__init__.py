"""Scripted sessions of the real mongosh, used by the demo and the tests.

The scripts check their results themselves; this package knows nothing of the daemons.
"""
