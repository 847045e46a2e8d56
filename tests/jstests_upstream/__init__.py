"""MongoDB's own integration suites, from a checkout that the user names, run through ``shardwright jstest``.

``python -m tests.jstests_upstream CHECKOUT`` (``make jstests``) runs them. ``expected.md`` lists the files that do not
pass, each with its reason. Nothing of a checkout is part of this repository.
"""
