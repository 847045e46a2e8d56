"""Client operations before they reach mongod: admission, and sharded operations that mongod cannot do alone.

Owns the checks and changes made before a request is forwarded.
May import `context`, `exchange`, `metadata`, `session_history`, `shard_key_updates` and `transactions`.
"""
