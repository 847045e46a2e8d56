"""Range deletion of orphans after migrations, complete or not, once no operation reads them.

Owns ``config.rangeDeletions``, the task that processes it, and hiding incoming ranges from older operations.
`range_deleter` decides when a deletion may begin; `range_deletions` registers deletions for the rest of the daemon.
May import `context`, `local_mongod`, `metadata` and `orphans`.
"""
