"""Two-phase commit: this shard as the coordinator of transactions that wrote on several shards.

Owns the coordinators, their documents in ``config.transaction_coordinators``, and recovering the outcome of a commit.
`coordinators` receives requests to commit, starts a `transaction_coordinator` for each, and reports them. The
coordinator takes the steps that `commit_state` decides. At step-up `TransactionCoordinators.begin_term` resumes the
commits of former primaries.
May import `context`, `local_mongod`, `metadata` and `transactions`.
"""
