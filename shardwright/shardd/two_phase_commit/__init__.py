"""Two-phase commit: this shard as the coordinator of transactions that wrote on several shards.

Owns the coordinators, their documents in ``config.transaction_coordinators``, and recovering the outcome of a commit.
`coordinators` receives requests to commit and starts a `transaction_coordinator` for each. The coordinator takes the
steps that `commit_state` decides; `reporting` describes them.
May import `context`, `local_mongod`, `metadata` and `transactions`.
"""
