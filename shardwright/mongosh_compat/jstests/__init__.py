"""Runner for integration suites in the style of MongoDB's ``jstests/`` in stock mongosh.

Owns the runner. The JavaScript for suites is in ``scripts/jstests``. Clusters are started through the launcher's
command, which the caller passes. May import `mongosh_compat`.
"""
