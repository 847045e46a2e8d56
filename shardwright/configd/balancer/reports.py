"""Dry runs: the decisions of a round with their reasons, and whether a collection complies with the policy.

Errors as `Catalog.find`.
"""

from datetime import datetime
from typing import Any

from bson.int64 import Int64

from shardwright.configd.balancer.cluster_view import ClusterView, chunk_bytes_max, read_view
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.defragmentation.preview import next_steps
from shardwright.configd.balancer.defragmentation.situation import defragmentation_details
from shardwright.configd.balancer.round import answers_for, in_turn
from shardwright.configd.term.term import Term
from shardwright.sharding.balancing.cluster_state import CollectionState
from shardwright.sharding.balancing.decisions import Skipped
from shardwright.sharding.balancing.policy import choose_moves, choose_splits, first_violation
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import raw_document


async def explain(term: Term, only: str | None = None) -> dict[str, Any]:
    """Return the decisions that a round would make now, with their reasons, without executing them.

    The round's collections come first, then collections in defragmentation with the decisions of their present phase.
    ``only`` restricts this to one namespace.
    """
    configuration = await Configuration().reread(term.catalog)
    view = await read_view(term, configuration, only)
    answers = answers_for(term, view)
    splits = (await answers.drive(choose_splits(view.collections))).splits
    unsplit = {str(split.namespace): "it will be split at the bounds of its zones first" for split in splits}
    decisions = await answers.drive(choose_moves(view.cluster, in_turn(view, unsplit)))
    fragmented = [entry for entry in view.entries.values() if entry.is_defragmented]
    steps = [step for entry in fragmented for step in await next_steps(term, entry, configuration)]
    details = {str(entry.namespace): await _defragmentation(term, entry, configuration) for entry in fragmented}
    decided = [*splits, *decisions.moves, *(each for each in steps if not isinstance(each, Skipped))]
    skipped = [*decisions.skipped, *(each for each in steps if isinstance(each, Skipped))]
    return {
        "enabled": configuration.is_valid and configuration.balancer.may_balance(datetime.now()),
        "mode": configuration.balancer.mode,
        "balancerPolicy": view.cluster.policy.value,
        "shards": [_shard(view, shard.id) for shard in view.cluster.shards],
        "collections": [{**_collection(each), **details.get(str(each.namespace), {})} for each in view.collections],
        "decisions": [each.to_document() for each in decided],
        "skipped": [each.to_document() for each in skipped],
        "heldBack": [
            {"ns": namespace, "min": raw_document(bound), "error": error}
            for namespace, entry in view.entries.items()
            for bound, error in term.move_backoff.errors(entry.uuid).items()
        ],
    }


def _shard(view: ClusterView, shard_id: str) -> dict[str, Any]:
    entry = view.shards[shard_id]
    document: dict[str, Any] = {"shard": shard_id, "draining": entry.is_draining, "zones": list(entry.tags)}
    if shard_id in view.silent:
        document["notAvailable"] = view.silent[shard_id]
    return document


def _collection(state: CollectionState) -> dict[str, Any]:
    return {
        "ns": str(state.namespace),
        "chunkSizeBytes": Int64(state.chunk_bytes_max),
        "bytes": {shard: Int64(size) for shard, size in sorted(state.sizes.items())},
    }


async def _defragmentation(term: Term, entry: CollectionEntry, configuration: Configuration) -> dict[str, Any]:
    size = chunk_bytes_max(entry, configuration)
    return {"defragmentation": await defragmentation_details(term, entry, size)}


async def collection_status(term: Term, namespace: str) -> dict[str, Any]:
    """Build the reply to ``balancerCollectionStatus``; the chunk size is in MB. Raises NamespaceNotSharded."""
    configuration = await Configuration().reread(term.catalog)
    view = await read_view(term, configuration, namespace)
    if namespace not in view.entries:
        raise CommandError(ErrorCode.NamespaceNotSharded, "Collection unsharded or undefined")
    entry = view.entries[namespace]
    if entry.is_defragmented:
        details = await defragmentation_details(term, entry, chunk_bytes_max(entry, configuration))
        return _reply(entry, configuration, "defragmentingChunks", details)
    violation = await answers_for(term, view).drive(first_violation(view.cluster, view.collections[0]))
    return _reply(entry, configuration, None if violation is None else violation.value)


def _reply(
    entry: CollectionEntry, configuration: Configuration, violation: str | None, details: dict[str, Any] | None = None
) -> dict[str, Any]:
    megabytes = chunk_bytes_max(entry, configuration) / (1 << 20)
    reply: dict[str, Any] = {"chunkSize": round(megabytes, 3), "balancerCompliant": violation is None}
    if violation is not None:
        reply["firstComplianceViolation"] = violation
    if details is not None:
        reply["details"] = details
    return reply
