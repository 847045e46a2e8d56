"""Range deletion of orphans after migrations, complete or not, once no operation reads them.

Owns ``config.rangeDeletions``, the task that processes it, and hiding incoming ranges from older operations.
`range_deleter_service` registers deletions for the rest of the daemon, keeps them in `KnownDeletions`, and hides a
range before its first document arrives. `range_deleter` decides when a deletion may begin.
May import `context`, `local_mongod`, `metadata` and `orphans`.
"""
