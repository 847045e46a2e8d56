"""Deleting ranges that were given away or did not arrive, once nobody reads them any more.

Owns ``config.rangeDeletions``, the task that works through it, and what comes before an incoming range is written.
May import `context`, `local_mongod`, `metadata` and `orphans`.
"""
