"""``shardwright balancer``: the balancer's switch and state, and the decisions of its next round."""

from collections.abc import Mapping
from typing import Any, Final

from pymongo import MongoClient
from pymongo.errors import PyMongoError

from shardwright.deploy.chunk_map import bound_text
from shardwright.deploy.errors import DeployError, reason

ACTIONS: Final = ("status", "start", "stop")

_VERBS: Final = {"moveChunk": "move", "moveRange": "move", "mergeChunks": "merge", "measureChunk": "measure"}


def balancer(uri: str, log_in: Mapping[str, Any], action: str) -> dict[str, Any]:
    """Start or stop the balancer if requested, and return ``mode``, ``inBalancerRound`` and ``numBalancerRounds``."""
    commands = {"start": "balancerStart", "stop": "balancerStop"}
    try:
        with MongoClient[dict[str, Any]](uri, **log_in) as client:
            if action in commands:
                client.admin.command(commands[action])
            reply = client.admin.command("balancerStatus")
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error
    return {name: reply[name] for name in ("mode", "inBalancerRound", "numBalancerRounds")}


def explanation(uri: str, log_in: Mapping[str, Any]) -> dict[str, Any]:
    """Return the decisions of the next balancer round, with reasons."""
    try:
        with MongoClient[dict[str, Any]](uri, **log_in) as client:
            reply = client.admin.command("balancerExplain")
    except PyMongoError as error:
        raise DeployError(f"the cluster refused: {reason(error)}") from error
    return {
        name: value for name, value in reply.items() if not name.startswith("$") and name not in ("ok", "operationTime")
    }


def status_text(status: dict[str, Any]) -> str:
    """Describe the state of the balancer in one line."""
    doing = "in a round" if status["inBalancerRound"] else "between two rounds"
    return (
        f"the balancer is {'off' if status['mode'] == 'off' else 'on'}, {doing}, {status['numBalancerRounds']} so far"
    )


def explanation_text(explained: dict[str, Any]) -> str:
    """Describe the next round, a line for each decision and for each collection, shard or zone that it skips."""
    switch = "on" if explained["enabled"] else "off (nothing of this is done)"
    lines = [f"policy {explained['balancerPolicy']}, the balancer is {switch}"]
    lines += [_decision_text(each) for each in explained["decisions"]] or ["nothing to do"]
    for each in explained["skipped"]:
        about = ", ".join(str(each[name]) for name in ("ns", "shard", "zone", "rule") if name in each)
        chunk = f" {_bounds_text(each)}" if "min" in each else ""
        lines.append(f"  left alone: {about}{chunk}: {each['reason']}")
    for each in explained["heldBack"]:
        lines.append(f"  held back: {each['ns']} from {bound_text(each['min'])}: {each['error']}")
    return "\n".join(lines)


def _decision_text(decision: dict[str, Any]) -> str:
    bounds = _bounds_text(decision)
    if decision["action"] == "split":
        points = ", ".join(map(bound_text, decision["splitKeys"]))
        return f"  split {decision['ns']} {bounds} on {decision['shard']} at {points}: {decision['rule']}"
    shown = ("action", "ns", "shard", "from", "to", "min", "max", "rule", "zone")
    numbers = ", ".join(f"{name} {value:,}" for name, value in decision.items() if name not in shown)
    zone = f", zone {decision['zone']}" if "zone" in decision else ""
    where = f"on {decision['shard']}" if "shard" in decision else f"{decision['from']} -> {decision['to']}"
    verb = _VERBS[decision["action"]]
    return f"  {verb} {decision['ns']} {bounds} {where}: {decision['rule']}{zone} ({numbers})"


def _bounds_text(document: dict[str, Any]) -> str:
    return f"[{bound_text(document['min'])}, {bound_text(document['max']) if 'max' in document else '...'})"
