"""The reply to ``explain`` in mongos's form: the router's stage, containing each shard's explanation."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

PLANNER_VERSION: Final = 1

_TOTALS: Final = ("nReturned", "executionTimeMillis", "totalKeysExamined", "totalDocsExamined")


@dataclass(frozen=True, slots=True)
class ShardExplain:
    """The explanation of one shard.

    Attributes:
        shard_id: the shard.
        connection_string: ``set/host:port,…``.
        address: the member that answered.
        reply: its reply, decoded.
    """

    shard_id: str
    connection_string: str
    address: str
    reply: Mapping[str, Any]


def explain_reply(
    stage: str, verbosity: str, shards: Sequence[ShardExplain], milliseconds: int, server: Mapping[str, Any]
) -> dict[str, Any]:
    """The reply for all commands but ``aggregate``.

    Args:
        stage: what the router does with the results.
        verbosity: how much was asked for.
        shards: their explanations.
        milliseconds: the router's execution time.
        server: the fields about the router that follow: ``serverInfo``, ``serverParameters``, ``command``.
    """
    reply: dict[str, Any] = {"queryPlanner": _query_planner(stage, shards)}
    if verbosity != "queryPlanner":
        reply["executionStats"] = _execution_stats(stage, verbosity, shards, milliseconds)
    return {**reply, **server}


def explain_aggregate_reply(
    shards: Sequence[ShardExplain],
    merge_type: str | None,
    split: Mapping[str, Any] | None,
    server: Mapping[str, Any],
) -> dict[str, Any]:
    """The reply for ``aggregate``.

    Args:
        shards: their explanations.
        merge_type: who merges, None if one shard does all.
        split: ``shardsPart`` and ``mergerPart``, None if one shard does all.
        server: as in `explain_reply`.
    """
    reply: dict[str, Any] = {} if merge_type is None else {"mergeType": merge_type}
    reply["splitPipeline"] = None if split is None else dict(split)
    reply["shards"] = {
        each.shard_id: {
            "host": each.address,
            **_chosen(each.reply, ("explainVersion", "stages", "queryPlanner", "executionStats")),
        }
        for each in shards
    }
    return {**reply, **server}


def _query_planner(stage: str, shards: Sequence[ShardExplain]) -> dict[str, Any]:
    return {
        "mongosPlannerVersion": PLANNER_VERSION,
        "winningPlan": {
            "stage": stage,
            "shards": [
                {
                    "shardName": each.shard_id,
                    "connectionString": each.connection_string,
                    **_chosen(each.reply, ("serverInfo",)),
                    **_planner_of(each.reply),
                }
                for each in shards
            ],
        },
    }


def _execution_stats(stage: str, verbosity: str, shards: Sequence[ShardExplain], milliseconds: int) -> dict[str, Any]:
    of_shards = [_stats_of(each.reply) for each in shards]
    totals = {name: sum(stats.get(name, 0) for stats in of_shards) for name in _TOTALS}
    child_milliseconds = totals["executionTimeMillis"]
    totals["executionTimeMillis"] = milliseconds
    found: dict[str, Any] = {
        **totals,
        "executionStages": {
            "stage": stage,
            **totals,
            "totalChildMillis": child_milliseconds,
            "shards": [
                {
                    "shardName": each.shard_id,
                    **{name: value for name, value in stats.items() if name != "allPlansExecution"},
                }
                for each, stats in zip(shards, of_shards, strict=True)
            ],
        },
    }
    if verbosity == "allPlansExecution":
        found["allPlansExecution"] = [
            {"shardName": each.shard_id, "allPlans": stats.get("allPlansExecution", [])}
            for each, stats in zip(shards, of_shards, strict=True)
        ]
    return found


def _planner_of(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    return _section(reply, "queryPlanner")


def _stats_of(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    return _section(reply, "executionStats")


def _section(reply: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A section of a shard's reply; for a view it is inside the first stage of the view's pipeline."""
    if name in reply:
        return dict(reply[name])
    for stage in reply.get("stages", ()):
        cursor = stage.get("$cursor", {})
        if name in cursor:
            return dict(cursor[name])
    return {}


def _chosen(reply: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: reply[name] for name in names if name in reply}
