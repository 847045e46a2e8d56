"""Operations in progress: routed, sent to shards, and retried when their routing was stale.

Owns the `Operation`, and steps shared by several families of commands. Unless a docstring says otherwise, functions
raise CommandError if a shard or the config servers fail.

::

    begun_operation ▶ operation                      a request in execution, also one begun by a passage
    transaction_abort                                transactions after an error
    scatter ▶ retry                                  one or several shards; fresh routing after a refusal
    cursor_opening                                   opening reads, and answering clients
    write_execution ▶ would_change_owning_shard      batches of writes; documents that move to another shard
    aggregation ▶ aggregation_plan                   pipelines on collections
      ▶ involved_collections, aggregation_writes     other collections; $out and $merge
    collectionless ▶ router_documents                pipelines without a collection
    checked_pipeline, listed_collection,             answers of a mongod or the primary shard before an operation runs
      nonexistent_namespace
    local_operations, fail_command                   $currentOp and killOp; failCommand

May import `context`, `cursors`, `exec`, `pipelines`, `placement`, `reads`, `replies`, `routing`, `transactions` and
`writes`.
"""
