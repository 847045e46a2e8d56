"""PyMongo's own tests, and Motor's, run on a plain replica set and on a cluster, and the results compared.

``python -m tests.pymongo_suite`` (``make pymongo-suite``) runs all of them. ``exceptions.md`` lists the tests that are
known to pass on the replica set and fail on the cluster, each with its reason.
"""
