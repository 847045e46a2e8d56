"""Scripted sessions of the real mongosh, run as a client by the demo and the tests.

The scripts assert what they expect themselves; this package knows nothing of the daemons.
"""
