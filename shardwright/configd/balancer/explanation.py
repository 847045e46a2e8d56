"""What the next round would do, and why: a dry run."""

from datetime import datetime
from typing import Any

from bson.int64 import Int64

from shardwright.configd.balancer.cluster_view import ClusterView, chunk_bytes_max, read_view
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.defragmentation.preview import next_steps
from shardwright.configd.balancer.defragmentation.progress import defragmentation_details
from shardwright.configd.balancer.round import answers_for, in_turn
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.cluster_state import CollectionState
from shardwright.sharding.balancing.decisions import Skipped
from shardwright.sharding.balancing.policy import choose_moves, choose_splits
from shardwright.sharding.catalog.collection_entry import CollectionEntry
from shardwright.wire.rawbson import raw_document


async def explain(primary: Primary, only: str | None = None) -> dict[str, Any]:
    """The decisions of a round that would begin now, none of which is carried out, and what they are based on.

    Collections that are defragmented come after those of the round, with the decisions of their present phase.

    Args:
        primary: the term's resources.
        only: the namespace of the one collection to consider; None for all.

    Raises:
        CommandError: the catalog could not be read.
        BackendError: the mongod does not answer.
    """
    configuration = await Configuration().reread(primary.catalog)
    view = await read_view(primary, configuration, only)
    answers = answers_for(primary, view)
    splits = (await answers.drive(choose_splits(view.collections))).splits
    unsplit = {str(split.namespace): "it will be split at the bounds of its zones first" for split in splits}
    decisions = await answers.drive(choose_moves(view.cluster, in_turn(view, unsplit)))
    fragmented = [entry for entry in view.entries.values() if entry.is_defragmented]
    steps = [step for entry in fragmented for step in await next_steps(primary, entry, configuration)]
    details = {str(entry.namespace): await _defragmentation(primary, entry, configuration) for entry in fragmented}
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
            for bound, error in primary.held_back.errors(entry.uuid).items()
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


async def _defragmentation(primary: Primary, entry: CollectionEntry, configuration: Configuration) -> dict[str, Any]:
    size = chunk_bytes_max(entry, configuration)
    return {"defragmentation": await defragmentation_details(primary, entry, size)}
