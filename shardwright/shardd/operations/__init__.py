"""Client operations before they reach mongod: admission, and sharded operations that mongod cannot do alone.

Owns the checks and changes made before a request is forwarded. Updates that may change a shard key are previewed,
checked, and executed exactly as previewed.

::

    admission ▶ involvement, waiting_operations      version checks, of further namespaces too, and waits
    sharded_operations                               what a mongod cannot do without sharding metadata
      ▶ key_changing_updates ▶ key_changing_request  requests with updates that may change a shard key
      ▶ key_changes, previewed_updates               the rules for them, and their commands
      ▶ update_transactions                          such an update in a transaction
    retried_writes                                   retries of statements that ran on another shard

May import `context`, `exchange`, `local_mongod`, `metadata`, `session_history` and `transactions`.
"""
