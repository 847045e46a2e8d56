"""Infrastructure for all daemons, without any sharding: running, logs, metrics, options, commands, and sidecars.

::

    run ▶ signals ▶ signal_mask                      the life of a process
    process_environment, http, version               its environment, its HTTP endpoints, its version
    configuration ▶ option_values                    its options, from command line, environment and file
    logs ▶ log_formats                               its log, and the rotation of all logs
    metrics ▶ operation_metrics; tracing             what monitoring sees
    query_shape, document_filter                     shapes of operations for the slow log; filters of logs
    command_table, current_op                        commands that all daemons have
    fail_command ▶ fail_points                       fail points
    passages                                         the common part of all daemons' passages
    internal_transaction                             transactions that a daemon runs for itself
    single_flight, backoff                           sharing the same work, and pauses between retries
    survey, shown_locks                              queries to all processes; config.locks for people and tools
    authentication, certificates                     keys, certificates, delays of guesses
    users                                            users, their privileges and sessions
    audit_log ▶ audit_events                         the log of their operations
    sidecar                                          the common part of daemons in front of a mongod
"""
