"""Replication between clusters: a client that copies a source into a target and follows its changes.

Modules that decide are marked as free of I/O; the others act on their decisions. Daemons are reached over the wire
only.

::

    cli, api ▶ session                               one run of a replication, and its users' requests
    preparing ▶ plan                                 the collections to create, refusals, the position to resume
    copying ▶ ranges                                 the copy, in ranges of `_id`
    following ▶ batches ▶ changes                    the changes of the source, in batches
    ddl ▶ placing, locks, commands                   collections, indexes, shard keys and zones at the target
    writing ▶ store ▶ checkpoint                     writes at the target, with position and lease
    verification ▶ comparing, rounds                 comparisons of both ends
    handover                                         commit and reversal
    ends                                             the two deployments as clients
"""
