"""The view of operations: rates and latencies, slow and frequent shapes, current operations, and open resources."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC
from itertools import accumulate
from math import inf
from typing import Any, Final

from shardwright.console.metrics import Durations, Sampler
from shardwright.console.reader import Document, Reader, Refused, of_routers, partly
from shardwright.console.sessions import Rights
from shardwright.console.shell_syntax import SyntaxFault, parsed, shell_text

_CURRENT_SECONDS: Final = 1.0
_SLOW_SECONDS: Final = 5.0
_SHOWN_MAX: Final = 100
_CURRENT_MAX: Final = 1000
_SHAPES_MAX: Final = 25
_SHAPES_READ_MAX: Final = 20_000
_POINTS_MAX: Final = 360
_CLIENTS_MAX: Final = 12
_USES_MAX: Final = 8
_OWN_NAMES: Final = ("shardwright-router", "shardwright-shardd", "shardwright-configd", "OplogFetcher")


async def operations(reader: Reader, sampler: Sampler) -> dict[str, Any]:
    """Return rates, quantiles, slow shapes, and clients' open cursors, transactions and sessions."""
    refusals: list[str] = []
    no_status: Document = {}
    status, slow = await asyncio.gather(
        partly(reader, "status", _CURRENT_SECONDS, lambda: reader.command({"serverStatus": 1}), no_status, refusals),
        recent_slow_shapes(reader, refusals),
    )
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
            # With whole seconds, samples of the same second would be drawn one above the other.
            "at": [round(each.at.timestamp(), 3) for each in points],
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


def charts(history: Mapping[str, Any]) -> dict[str, Any]:
    """Return the charts of the page: times, names and values of each; values are in the order of the names."""
    totals, quantiles = {"operations": "rate", "errors": "errors"}, ("p50", "p95", "p99")
    shards: Mapping[str, Any] = history["shards"]
    return {
        "rates": {
            "at": history["at"],
            "names": [*totals, *(f"shard {name}" if name in totals else name for name in shards)],
            "values": [*(history[name] for name in totals.values()), *shards.values()],
        },
        "latencies": {
            "at": history["at"],
            "names": [*quantiles],
            "values": [history[name] for name in quantiles],
        },
    }


def _rows(by_name: Mapping[str, Mapping[str, float | None]], label: str) -> list[Document]:
    rows = [{label: name, **values} for name, values in by_name.items()]
    return sorted(rows, key=lambda row: -(row["rate"] or 0))


async def recent_slow_shapes(reader: Reader, refusals: list[str]) -> list[Document]:
    """Return the slow operations in the recent logs of all routers, summed by shape, the costliest first."""
    replies = await of_routers(reader, "slow", _SLOW_SECONDS, {"getLog": "global"}, refusals)
    return slow_shapes(line for reply in replies.values() for line in reply["log"])


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
                "clients": [],
                "last": None,
            },
        )
        row["count"] += 1
        row["millis"] += duration
        row["maxMillis"] = max(row["maxMillis"], duration)
        row["shardsMax"] = max(row["shardsMax"], len(each.get("shards") or ()))
        row["last"] = each.get("t") or row["last"]
        client = {"app": each.get("app_name") or "", "host": _host(each.get("remote")), "user": each.get("user") or ""}
        if client not in row["clients"] and len(row["clients"]) < _CLIENTS_MAX:
            row["clients"].append(client)
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
    command = attributes.get("command", "")
    return {
        "t": document.get("t", {}).get("$date"),
        "namespace": attributes.get("ns"),
        "duration_ms": attributes.get("durationMillis", 0),
        "query_hash": attributes.get("queryHash"),
        "shape": attributes.get("queryShape"),
        "command": command if isinstance(command, str) else next(iter(command), ""),
        "plan_summary": attributes.get("planSummary"),
        "app_name": attributes.get("appName"),
        "remote": attributes.get("remote"),
        "user": attributes.get("user"),
        "shards": attributes.get("shards", ()),
    }


ORDERS: Final = {"count": "Count", "time": "Time", "scattered": "Scatter share"}
"""Orders of the frequent shapes: operations, their time in all, and the share of them on several shards."""


async def _counted_shapes(reader: Reader, refusals: list[str]) -> tuple[list[Document], Document]:
    """Return the shapes that routers count, added up over all routers, and the sum of the others."""
    asking = {"aggregate": 1, "pipeline": [{"$queryStats": {}}], "cursor": {"batchSize": _SHAPES_READ_MAX}}
    replies = await of_routers(reader, "shapes", _SLOW_SECONDS, asking, refusals)
    return _shape_rows(document for reply in replies.values() for document in reply["cursor"]["firstBatch"])


async def use_of(reader: Reader, rights: Rights, namespace: str) -> dict[str, Any]:
    """Return the uses of a collection: its frequent shapes, and the clients of its running and slow operations."""
    refusals: list[str] = []
    (rows, _), slow, running = await asyncio.gather(
        _counted_shapes(reader, refusals),
        recent_slow_shapes(reader, refusals),
        current_operations(reader, rights),
    )
    refusals += [each for each in running["refusals"] if each not in refusals]
    clients = [
        {"app": each["app"], "host": _host(each["client"]), "user": each["user"]}
        for each in running["operations"]
        if each["ns"] == namespace
    ]
    clients += [client for each in slow if each["ns"] == namespace for client in each["clients"]]
    counted = Counter(tuple(each.items()) for each in clients)
    shapes = sorted((each for each in rows if each["ns"] == namespace), key=lambda row: -row["count"])
    return {
        "shapes": shapes[:_USES_MAX],
        "clients": [dict(each) for each, _ in counted.most_common(_CLIENTS_MAX)],
        "refusals": refusals,
    }


def _host(address: str | None) -> str:
    """Return the host of ``host:port``: a client has another port on each connection."""
    return (address or "").rpartition(":")[0] or (address or "")


async def frequent_shapes(reader: Reader, order: str, namespace: str = "") -> dict[str, Any]:
    """Return the shapes that routers count, added up over all routers, the first ones in one of the `ORDERS`.

    Args:
        namespace: the collection whose shapes are returned; empty for all.
    """
    refusals: list[str] = []
    rows, others = await _counted_shapes(reader, refusals)
    total = sum(row["millis"] for row in rows) + others["millis"]
    for row in rows:
        row["timeShare"] = row["millis"] / total if total else None
    rows = [row for row in rows if namespace in ("", row["ns"])]
    rows.sort(key=_ORDER_KEYS[order], reverse=True)
    return {
        "order": order,
        "ns": namespace,
        "shapes": rows[:_SHAPES_MAX],
        "shapeCount": len(rows),
        "others": others,
        "refusals": refusals,
    }


_ORDER_KEYS: Final[Mapping[str, Callable[[Document], tuple[float, ...]]]] = {
    "count": lambda row: (row["count"],),
    "time": lambda row: (row["millis"],),
    "scattered": lambda row: (row["scatterShare"] or 0, row["count"]),
}


def route_text(command: str, namespace: str, shape: Mapping[str, Any] | None) -> str | None:
    """Return a command for the page *Why did it go there?*, with ``?`` for values; None if a shape has no route."""
    collection = namespace.partition(".")[2]
    # A hint does not change the route, and no index has the name of a placeholder.
    given = {name: value for name, value in (shape or {}).items() if name not in (command, "hint")}
    try:
        arguments = {name: value if name == "key" else _with_placeholders(value, name) for name, value in given.items()}
    except _NoPlaceholderError:
        return None
    if not collection or not arguments:
        return None
    if command in _STATEMENTS:
        statements, of_all = _STATEMENTS[command]
        arguments = {statements: [{**arguments, **of_all}]}
    elif command in _COMPLETED:
        present, added = _COMPLETED[command]
        arguments = arguments if present in arguments else {**arguments, **added}
    elif command not in _COMPLETE:
        return None
    text = shell_text({command: collection, **arguments})
    try:
        parsed(text, "")
    except SyntaxFault:  # a field has the name of a type of Extended JSON
        return None
    return text


class _NoPlaceholderError(ValueError):
    """An operator has no placeholder that shards would accept in place of its value."""


def _with_placeholders(value: Any, place: str) -> Any:  # noqa: ANN401 - any part of a shape
    """Return a part of a shape with a placeholder of the right type for each value.

    Args:
        place: the argument or operator that the value belongs to; empty for the value of a field.

    Raises:
        _NoPlaceholderError: a value has none.
    """
    if isinstance(value, Mapping):
        inherited = place if place in _OF_FIELDS else ""
        return {
            name: _with_placeholders(each, name if name.startswith("$") else inherited) for name, each in value.items()
        }
    if isinstance(value, list):
        return [_with_placeholders(each, _LISTED.get(place, place)) for each in value]
    if value != _PLACEHOLDER:
        return value
    if place in _WITHOUT_PLACEHOLDER:
        raise _NoPlaceholderError(place)
    return 1 if place in _NUMBERS else value


_PLACEHOLDER: Final = "?"
_OF_FIELDS: Final = frozenset({"$geometry", "$inc", "$mul", "$pop", "$bit", "$currentDate", "$sample"})
"""Operators whose documents have fields with values of the operator's type."""

_NUMBERS: Final = frozenset({"$inc", "$limit", "$mul", "$pop", "$position", "$sample", "$size", "$skip", "$slice"})
_WITHOUT_PLACEHOLDER: Final = frozenset(
    {
        *("filter", "query", "q", "update", "u", "pipeline", "sort", "projection", "fields"),
        *("$all", "$and", "$elemMatch", "$in", "$nin", "$nor", "$not", "$or", "$text"),
        *("$geoIntersects", "$geoWithin", "$geometry", "$near", "$nearSphere"),
        *("$bitsAllClear", "$bitsAllSet", "$bitsAnyClear", "$bitsAnySet"),
        *("$jsonSchema", "$mod", "$options", "$rand", "$regex", "$sampleRate", "$type", "$where"),
        *("$bit", "$currentDate"),
    }
)
"""Arguments and operators for which a text, in place of a document, a number, a list or code, is an error."""

_LISTED: Final = {"$all": "", "$in": "", "$nin": ""}


_STATEMENTS: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "update": ("updates", {"multi": True}),
    "delete": ("deletes", {"limit": 0}),
}
"""The field with the statements of a command, and the fields of a statement on all matching documents."""

_COMPLETED: Final[Mapping[str, tuple[str, Mapping[str, Any]]]] = {
    "aggregate": ("cursor", {"cursor": {}}),
    "findAndModify": ("update", {"remove": True}),
}
"""Required fields of a command that its shape omits, unless the named field is present."""

_COMPLETE: Final = frozenset({"count", "distinct", "find"})
"""Commands whose shape has all required fields."""


def _shape_rows(documents: Iterable[Document]) -> tuple[list[Document], Document]:
    """Return a row for each shape, and the sum of the shapes that routers no longer keep apart."""
    sums: dict[tuple[str, str], Document] = {}
    others: Document = {"count": 0, "millis": 0.0, "evicted": 0}
    for document in documents:
        metrics, shape = document["metrics"], document["key"].get("queryShape")
        if shape is None:
            others["count"] += metrics["execCount"]
            others["millis"] += metrics["totalExecMicros"]["sum"] / 1000
            others["evicted"] += document["evicted"]
            continue
        since = metrics["firstSeenTimestamp"].replace(tzinfo=UTC)  # pymongo reads commands' replies without it
        arguments = {name: value for name, value in shape.items() if name not in ("cmdNs", "command")}
        namespace = ".".join(filter(None, (shape["cmdNs"]["db"], shape["cmdNs"]["coll"])))
        row = sums.setdefault(
            (namespace, document["queryShapeHash"]),
            {
                "ns": namespace,
                "hash": document["queryShapeHash"],
                "command": shape["command"],
                "shape": {shape["command"]: "?", **arguments},
                **dict.fromkeys(("count", "errors", "targeted", "scattered", "shards", "bytes", "documents"), 0),
                "millis": 0.0,
                "durations": Counter[float](),
                "since": since,
            },
        )
        for name, number in (
            ("count", metrics["execCount"]),
            ("errors", metrics["errorCount"]),
            ("targeted", metrics["targetedCount"]),
            ("scattered", metrics["scatteredCount"]),
            ("shards", metrics["shardsTargeted"]["sum"]),
            ("bytes", metrics["bytesReturned"]["sum"]),
            ("documents", metrics["docsReturned"]["sum"]),
            ("millis", metrics["totalExecMicros"]["sum"] / 1000),
        ):
            row[name] += number
        row["durations"].update({each["micros"] / 1000: each["count"] for each in metrics["histogram"]})
        row["since"] = min(row["since"], since)
    return [_with_shares(row) for row in sums.values()], others


def _with_shares(row: Document) -> Document:
    sent = row["targeted"] + row["scattered"]
    durations: Counter[float] = row.pop("durations")
    return {
        **row,
        "meanMillis": row["millis"] / row["count"] if row["count"] else None,
        "p95Millis": _quantile(durations, 0.95),
        "scatterShare": row["scattered"] / sent if sent else None,
        "meanShards": row["shards"] / sent if sent else None,
    }


def _quantile(durations: Mapping[float, int], part: float) -> float | None:
    """Return a quantile in milliseconds.

    Args:
        durations: the number of operations by the lower bound of their bucket, in milliseconds.
    """
    bounds = sorted(durations)
    reached = accumulate(durations[bound] for bound in bounds)
    return Durations(dict(zip((*bounds[1:], inf), map(float, reached), strict=True))).quantile(part)


async def current_operations(reader: Reader, rights: Rights, *, own: bool = False) -> dict[str, Any]:
    """Return current operations: of all users, if this user may see them.

    Args:
        own: whether to show operations of the cluster's processes too.
    """
    of_all = rights.may("inprog")
    refusals: list[str] = []

    async def read() -> list[Document]:
        return await reader.aggregate(
            "admin",
            None,
            [
                {"$currentOp": {"allUsers": of_all, "idleSessions": False}},
                {"$match": {"active": True, "command.aggregate": {"$not": {"$eq": 1}}}},
                {"$sort": {"microsecs_running": -1}},
                {"$limit": _CURRENT_MAX},
            ],
        )

    none: list[Document] = []
    found = await partly(reader, ("current", of_all), _CURRENT_SECONDS, read, none, refusals)
    shown = [each for each in found if own or _is_of_clients(each)]
    rows = [_operation(each) for each in shown]
    rows.sort(key=lambda row: -row["seconds"])
    return {
        "ofAllUsers": of_all,
        "operations": rows[:_SHOWN_MAX],
        "hidden": len(found) - len(shown),
        "refusals": refusals,
    }


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
