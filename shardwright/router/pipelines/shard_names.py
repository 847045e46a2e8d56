"""Sources that describe a shard: their documents name it."""

from typing import Any

import bson

from shardwright.router.pipelines.split import stage_of
from shardwright.router.pipelines.stages import Place, place_of
from shardwright.router.reads.pipeline import Stage


def with_shard_name(stages: tuple[Stage, ...], shard: str) -> tuple[Stage, ...]:
    """The stages for one shard; a source that describes the shard is followed by a stage that adds the shard's name.

    A mongod started as a shard server adds the name itself, at the same place. The ids of operations get the form
    ``shard:id`` that ``killOp`` takes. The address of the shard's client, which is a router, becomes ``client_s``.
    """
    first = stages[0].name if stages else ""
    if place_of(first) is not Place.DESCRIBES_SHARD:
        return stages
    return (stages[0], stage_of(bson.encode(shard_name_stage(first, shard))), *stages[1:])


def shard_name_stage(source: str, shard: str) -> dict[str, Any]:
    """The stage that adds a shard's name to the documents of a source that describes it."""
    added: dict[str, Any] = {"shard": {"$literal": shard}}  # a name may begin with a dollar sign
    if source == "$currentOp":
        of_shard = {"$concat": [{"$literal": f"{shard}:"}, {"$toString": "$opid"}]}
        added["opid"] = {"$ifNull": [of_shard, "$$REMOVE"]}
        added |= {"client_s": {"$ifNull": ["$client", "$client_s", "$$REMOVE"]}, "client": "$$REMOVE"}
    return {"$addFields": added}
