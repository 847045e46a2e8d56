"""Client operations on their way to mongod: admission, and what mongod cannot do because it knows no sharding.

Owns the checks and changes that are made before a request is forwarded.
May import `context`, `exchange`, `metadata`, `session_history`, `shard_key_updates` and `transactions`.
"""
