"""Two-phase commit: this shard as the coordinator of transactions that wrote on several shards.

Owns the coordinators, their documents in ``config.transaction_coordinators``, and recovering the outcome of a commit.
May import `context`, `local_mongod`, `metadata` and `transactions`.
"""
