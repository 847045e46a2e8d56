"""Range deletion of orphans after migrations, complete or not, once no operation reads them.

Owns ``config.rangeDeletions``, the task that processes it, and hiding incoming ranges from older operations.
May import `context`, `local_mongod`, `metadata` and `orphans`.
"""
