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
    stage: str,
    verbosity: str,
    shards: Sequence[ShardExplain],
    milliseconds: int,
    server: Mapping[str, Any],
    command: Mapping[str, Any],
) -> dict[str, Any]:
    """The reply for all commands but ``aggregate``.

    Args:
        stage: what the router does with the results.
        verbosity: how much was asked for.
        shards: their explanations.
        milliseconds: the router's execution time.
        server: ``serverInfo`` and ``serverParameters`` of the router.
        command: the command that is explained.
    """
    reply: dict[str, Any] = {"queryPlanner": _query_planner(stage, shards)}
    if verbosity != "queryPlanner":
        reply["executionStats"] = _execution_stats(stage, verbosity, shards, milliseconds)
    return {**reply, **server, "command": command}


def explain_aggregate_reply(
    shards: Sequence[ShardExplain],
    merge_type: str | None,
    split: Mapping[str, Any] | None,
    server: Mapping[str, Any],
    command: Mapping[str, Any],
) -> dict[str, Any]:
    """The reply for ``aggregate`` on a sharded collection.

    Args:
        shards: their explanations.
        merge_type: who merges, None if one shard does all.
        split: ``shardsPart`` and ``mergerPart``, None if one shard does all.
        server: as in `explain_reply`.
        command: as in `explain_reply`.
    """
    return {
        **server,
        **({} if merge_type is None else {"mergeType": merge_type}),
        "splitPipeline": None if split is None else dict(split),
        "shards": {
            each.shard_id: {
                "host": each.address,
                **_chosen(each.reply, ("stages", "queryPlanner", "executionStats")),
            }
            for each in shards
        },
        "command": command,
    }


def explain_router_reply(
    shard: ShardExplain, server: Mapping[str, Any], address: str, command: Mapping[str, Any]
) -> dict[str, Any]:
    """The reply for an aggregation that a mongos runs itself.

    Args:
        shard: the explanation of a shard, whose stages would be the router's.
        server: as in `explain_reply`.
        address: of the router.
        command: as in `explain_reply`.
    """
    return {
        **server,
        "splitPipeline": None,
        "mongos": {"host": address, **_chosen(shard.reply, ("stages",))},
        "command": command,
    }


def passed_through(
    shard: ShardExplain, server: Mapping[str, Any], shown: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The reply for an aggregation of unsharded collections: the only shard's, with what is about the router.

    Args:
        shard: its explanation.
        server: as in `explain_reply`.
        shown: the command, if not as the shard shows it.
    """
    said = {name: value for name, value in shard.reply.items() if name not in server}
    return {**server, **said, **({} if shown is None else {"command": shown})}


def explains_aggregation(reply: Mapping[str, Any]) -> bool:
    """Whether a mongod has explained a read as an aggregation: of a view, on the collection beneath the view."""
    return "aggregate" in reply.get("command", {})


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
                    **each.reply["queryPlanner"],
                }
                for each in shards
            ],
        },
    }


def _execution_stats(stage: str, verbosity: str, shards: Sequence[ShardExplain], milliseconds: int) -> dict[str, Any]:
    of_shards = [each.reply["executionStats"] for each in shards]
    totals = {name: sum(stats.get(name, 0) for stats in of_shards) for name in _TOTALS}
    child_milliseconds = totals["executionTimeMillis"]
    totals["executionTimeMillis"] = milliseconds
    found: dict[str, Any] = {
        **totals,
        "executionStages": {
            "stage": stage,
            **totals,
            "totalChildMillis": child_milliseconds,
            "shards": [{"shardName": each.shard_id, **stats} for each, stats in zip(shards, of_shards, strict=True)],
        },
    }
    if verbosity == "allPlansExecution":
        found["allPlansExecution"] = [
            {"shardName": each.shard_id, "allPlans": stats.get("allPlansExecution", [])}
            for each, stats in zip(shards, of_shards, strict=True)
        ]
    return found


def _chosen(reply: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: reply[name] for name in names if name in reply}
