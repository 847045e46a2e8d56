"""The view of operations: rates and latencies, slow shapes, current operations, and clients' open resources."""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from shardwright.console.reader import Document, Reader, Refused, maybe
from shardwright.console.sampler import Sampler
from shardwright.console.sessions import Rights

_CURRENT_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 5.0
_SHOWN_MAX: Final = 100
_SHAPES_MAX: Final = 25
_POINTS_MAX: Final = 360
_OWN_NAMES: Final = ("shardwright-router", "shardwright-shardd", "shardwright-configd", "OplogFetcher")


async def operations(reader: Reader, sampler: Sampler) -> dict[str, Any]:
    """Return rates, quantiles, slow shapes, and clients' open cursors, transactions and sessions."""
    refusals: list[str] = []
    status = await maybe(
        reader.kept("status", _CURRENT_SECONDS, lambda: reader.command({"serverStatus": 1})), {}, refusals
    )
    slow = await maybe(recent_slow_shapes(reader), [], refusals)
    cursors = status.get("metrics", {}).get("cursor", {}).get("open", {})
    transactions = status.get("transactions", {})
    latest = sampler.points[-1] if sampler.points else None
    points = list(sampler.points)[-_POINTS_MAX:]
    return {
        "hasMetrics": bool(sampler.targets),
        "at": None if latest is None else latest.at,
        "seconds": None if latest is None else latest.seconds,
        "total": None if latest is None else latest.total,
        "scattered": None if latest is None else latest.scattered,
        "commands": [] if latest is None else _rows(latest.commands, "command"),
        "shards": [] if latest is None else _rows(latest.shards, "shard"),
        "history": {
            "at": [int(each.at.timestamp()) for each in points],
            "rate": [each.total["rate"] for each in points],
            "errors": [each.total["errors"] for each in points],
            "p50": [each.total["p50"] for each in points],
            "p95": [each.total["p95"] for each in points],
            "p99": [each.total["p99"] for each in points],
            "shards": {
                name: [each.shards.get(name, {}).get("rate") for each in points]
                for name in sorted({name for each in points[-1:] for name in each.shards})
            },
        },
        "router": {
            "host": status.get("host"),
            "connections": status.get("connections", {}).get("current"),
            "connectionsActive": status.get("connections", {}).get("active"),
            "cursors": cursors.get("total"),
            "cursorsPinned": cursors.get("pinned"),
            "transactions": transactions.get("currentOpen"),
            "transactionsCommitted": transactions.get("totalCommitted"),
            "transactionsAborted": transactions.get("totalAborted"),
            "sessions": status.get("logicalSessionRecordCache", {}).get("activeSessionsCount"),
        },
        "slow": slow,
        "refusals": refusals,
    }


def _rows(by_name: Mapping[str, Mapping[str, float | None]], label: str) -> list[Document]:
    rows = [{label: name, **values} for name, values in by_name.items()]
    return sorted(rows, key=lambda row: -(row["rate"] or 0))


async def recent_slow_shapes(reader: Reader) -> list[Document]:
    """Return the slow operations in the recent logs of all routers, summed by shape, the costliest first."""

    async def read() -> list[Document]:
        replies = await reader.of_each_router({"getLog": "global"})
        return slow_shapes(line for reply in replies.values() for line in reply["log"])

    return await reader.kept("slow", _SLOW_SECONDS, read)


def slow_shapes(lines: Iterable[str]) -> list[Document]:
    """Sum slow operations by shape from log lines, ours or in mongod's form, the costliest first."""
    found: dict[tuple[str, str], Document] = {}
    for line in lines:
        each = _slow_operation(line)
        if each is None:
            continue
        key = (str(each.get("query_hash", "")), str(each.get("namespace", "")))
        duration = float(each.get("duration_ms", 0))
        row = found.setdefault(
            key,
            {
                "hash": key[0],
                "ns": key[1],
                "command": each.get("command", ""),
                "shape": each.get("shape"),
                "count": 0,
                "millis": 0.0,
                "maxMillis": 0.0,
                "shardsMax": 0,
                "plan": each.get("plan_summary"),
                "app": each.get("app_name"),
                "last": None,
            },
        )
        row["count"] += 1
        row["millis"] += duration
        row["maxMillis"] = max(row["maxMillis"], duration)
        row["shardsMax"] = max(row["shardsMax"], len(each.get("shards") or ()))
        row["last"] = each.get("t") or row["last"]
    return sorted(found.values(), key=lambda row: -row["millis"])[:_SHAPES_MAX]


def _slow_operation(line: str) -> Mapping[str, Any] | None:
    if '"Slow ' not in line:
        return None
    try:
        document = json.loads(line)
    except ValueError:
        return None
    if document.get("msg") == "Slow operation":
        own: Mapping[str, Any] = document
        return own
    if document.get("msg") != "Slow query":
        return None
    attributes = document.get("attr", {})
    return {
        "t": document.get("t", {}).get("$date"),
        "namespace": attributes.get("ns"),
        "duration_ms": attributes.get("durationMillis", 0),
        "query_hash": attributes.get("queryHash"),
        "shape": attributes.get("shape"),
        "command": next(iter(attributes.get("command", {})), ""),
        "plan_summary": attributes.get("planSummary"),
        "app_name": attributes.get("appName"),
        "shards": attributes.get("shards", ()),
    }


async def current_operations(reader: Reader, rights: Rights, *, own: bool = False) -> dict[str, Any]:
    """Return current operations: of all users, if this user may see them.

    Args:
        own: whether to show operations of the cluster's processes too.
    """
    of_all = rights.may("inprog")

    async def read() -> list[Document]:
        return await reader.aggregate(
            "admin",
            None,
            [
                {"$currentOp": {"allUsers": of_all, "idleSessions": False}},
                {"$match": {"active": True, "command.aggregate": {"$not": {"$eq": 1}}}},
                {"$limit": 1000},
            ],
        )

    found = await reader.kept(("current", of_all), _CURRENT_SECONDS, read)
    shown = [each for each in found if own or _is_of_clients(each)]
    rows = [_operation(each) for each in shown]
    rows.sort(key=lambda row: -row["seconds"])
    return {"ofAllUsers": of_all, "operations": rows[:_SHOWN_MAX], "hidden": len(found) - len(shown)}


def _is_of_clients(operation: Mapping[str, Any]) -> bool:
    if operation.get("op") in ("none", None) and not operation.get("command"):
        return False
    if "hello" in operation.get("command", {}) or "isMaster" in operation.get("command", {}):
        return False
    return operation.get("appName") not in _OWN_NAMES or bool(operation.get("ns", "").partition(".")[2] != "$cmd")


def _operation(operation: Mapping[str, Any]) -> Document:
    command = operation.get("command", {})
    return {
        "opid": operation.get("opid"),
        "shard": operation.get("shard", ""),
        "op": operation.get("op", ""),
        "ns": operation.get("ns", ""),
        "command": next(iter(command), ""),
        "seconds": operation.get("microsecs_running", 0) / 1e6,
        "client": operation.get("client_s") or operation.get("client") or "",
        "app": operation.get("appName", ""),
        "plan": operation.get("planSummary"),
        "user": ", ".join(f"{each['user']}@{each['db']}" for each in operation.get("effectiveUsers", ())),
        "inTransaction": "transaction" in operation,
        "isWaiting": bool(operation.get("waitingForLock")),
        "desc": operation.get("desc", ""),
    }


async def is_known(reader: Reader, opid: str) -> bool:
    """Whether an operation still runs, as far as the user may see it."""
    try:
        found = await reader.aggregate("admin", None, [{"$currentOp": {"allUsers": True}}, {"$match": {"opid": opid}}])
    except Refused:
        return False
    return bool(found)
