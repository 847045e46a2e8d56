"""How far the defragmentation of a collection has got, as its entry and its chunks record it."""

from typing import Any, Final

from shardwright.configd.balancer.defragmentation.chunks import SIZE_FIELD, chunks_of
from shardwright.configd.primary.primary import Primary
from shardwright.sharding.balancing.defragmentation import Phase, small_bytes
from shardwright.sharding.catalog.collection_entry import CollectionEntry

DEFRAGMENTATION_FIELDS: Final = ("defragmentCollection", "defragmentationPhase")
"""The fields of a collection's entry, both absent unless it is defragmented."""

_NOT_BEGUN: Final = "none"


async def defragmentation_details(primary: Primary, entry: CollectionEntry, chunk_bytes_max: int) -> dict[str, Any]:
    """The ``details`` of ``balancerCollectionStatus`` for a collection that is defragmented.

    Raises:
        CommandError: the mongod refused.
        BackendError: the mongod does not answer.
    """
    details: dict[str, Any] = {"currentPhase": entry.defragmentation_phase or _NOT_BEGUN}
    remaining = {
        Phase.MERGE_AND_MEASURE.value: {"$exists": False},
        Phase.MOVE_AND_MERGE.value: {"$lt": small_bytes(chunk_bytes_max)},
    }.get(entry.defragmentation_phase or "")
    if remaining is not None:
        number = await primary.catalog.count("chunks", {**chunks_of(entry), SIZE_FIELD: remaining})
        details["progress"] = {"remainingChunksToProcess": int(number)}
    return details


async def set_phase(primary: Primary, entry: CollectionEntry, phase: Phase) -> None:
    """Record that a phase has begun, unless the defragmentation was turned off. Errors as `Catalog.update_many`."""
    wanted = {**_incarnation(entry), "defragmentCollection": True}
    await primary.catalog.update_many("collections", wanted, {"$set": {"defragmentationPhase": phase.value}})


async def forget(primary: Primary, entry: CollectionEntry) -> None:
    """Remove the recorded sizes and the phase: the defragmentation is over. Errors as `Catalog.update_many`."""
    sized = {**chunks_of(entry), SIZE_FIELD: {"$exists": True}}
    await primary.catalog.update_many("chunks", sized, {"$unset": {SIZE_FIELD: ""}})
    await primary.catalog.update_many(
        "collections", _incarnation(entry), {"$unset": dict.fromkeys(DEFRAGMENTATION_FIELDS, "")}
    )


def _incarnation(entry: CollectionEntry) -> dict[str, Any]:
    """The query for the entry, but not for that of another collection which has the name by now."""
    return {"_id": str(entry.namespace), **chunks_of(entry)}
