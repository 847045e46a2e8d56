"""Running integration suites in the style of MongoDB's ``jstests/`` in stock mongosh.

Owns the runner; the JavaScript that suites see is in ``scripts/jstests``. Clusters are started through the launcher's
command, which is handed over. May import `mongosh_compat`.
"""
