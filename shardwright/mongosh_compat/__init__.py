"""Scripted sessions of the real mongosh, for the demo and the tests.

The scripts check their results themselves. This package does not depend on the daemons.
"""
