"""Sources that describe a shard: their documents name it."""

from typing import Any

import bson

from shardwright.router.pipelines.split import stage_of
from shardwright.router.pipelines.stages import Place, place_of
from shardwright.router.reads.pipeline import Stage


def with_shard_name(stages: tuple[Stage, ...], shard: str) -> tuple[Stage, ...]:
    """The stages for one shard; a source that describes the shard is followed by a stage that adds the shard's name.

    A mongod started as a shard server adds the name itself, at the same place. The ids of operations get
    the form ``shard:id`` that ``killOp`` takes.
    """
    first = stages[0].name if stages else ""
    if place_of(first) is not Place.DESCRIBES_SHARD:
        return stages
    added: dict[str, Any] = {"shard": {"$literal": shard}}  # a name may begin with a dollar sign
    if first == "$currentOp":
        of_shard = {"$concat": [{"$literal": f"{shard}:"}, {"$toString": "$opid"}]}
        added["opid"] = {"$ifNull": [of_shard, "$$REMOVE"]}
    return (stages[0], stage_of(bson.encode({"$addFields": added})), *stages[1:])
