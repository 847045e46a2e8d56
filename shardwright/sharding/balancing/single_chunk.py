"""Where to move one chunk that a shard offers, because it is the hot end of its collection."""

from collections import Counter

from shardwright.sharding.balancing.choice import ShardChoice
from shardwright.sharding.balancing.cluster_state import ClusterState, CollectionState, Policy
from shardwright.sharding.balancing.decisions import Move, Rule
from shardwright.sharding.balancing.questions import Asking, Candidate, ChunkCounts, ask_counts


def place_offered(cluster: ClusterState, collection: CollectionState, chunk: Candidate) -> Asking[Move | None]:
    """The move to the least loaded shard of the chunk's zone; None if that is the owner, or there is none.

    Args:
        cluster: shards and settings.
        collection: the chunk's collection.
        chunk: a chunk that does not contain the bound of a zone in its interior.
    """
    if collection.why_skipped:
        return None
    if cluster.policy is Policy.DATA_SIZE:
        loads = collection.sizes
    else:
        loads = Counter((yield from ask_counts(ChunkCounts(collection.namespace, None))))
    zone = collection.zones.zone_of(chunk.range.min_key)
    recipient = ShardChoice(cluster).least_loaded(zone, loads)
    if recipient is None or recipient.id == chunk.shard:
        return None
    numbers = {"donorLoad": loads.get(chunk.shard, 0), "recipientLoad": loads.get(recipient.id, 0)}
    return Move(collection.namespace, chunk, recipient.id, Rule.HOT_END, is_whole=True, zone=zone, numbers=numbers)
