"""Deleting the orphans of ranges that were given away or not received completely, once no operation reads them.

Owns ``config.rangeDeletions``, the task that works through it, and hiding incoming ranges from older operations.
May import `context`, `local_mongod`, `metadata` and `orphans`.
"""
