"""The JSON API: one table of endpoints, from which both the routes and the OpenAPI document (`app.open_api`) are made.

Values are in MongoDB's relaxed Extended JSON: times are ``{"$date": …}``.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.console import balancer, collections, explaining, heat_map, operations, overview, security
from shardwright.console.actions import ACTIONS, ActionFault, perform
from shardwright.console.dry_runs import DRY_RUNS, dry_run
from shardwright.console.sessions import BadParameter, Call


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One address of the API.

    Attributes:
        path: below ``/api/``.
        answer: makes the reply.
        returns: the fields of the reply, described.
        parameters: of the query or the form, described; a name that ends in ``?`` is optional.
        method: GET, or POST for requests that need the CSRF token.
    """

    path: str
    summary: str
    answer: Callable[[Call], Awaitable[dict[str, Any]]]
    returns: Mapping[str, str]
    parameters: Mapping[str, str] = field(default_factory=dict)
    method: str = "GET"


async def _session(call: Call) -> dict[str, Any]:
    rights = await call.session.rights()
    return {
        "user": call.session.user or None,
        "roles": list(rights.roles),
        "csrf": call.session.csrf,
        "may": [name for name, action in ACTIONS.items() if not action.arguments and action.needs(rights, {})],
    }


async def _overview(call: Call) -> dict[str, Any]:
    return await overview.overview(call.session.reader, call.sampler, call.settings)


async def _collections(call: Call) -> dict[str, Any]:
    return await collections.collections(call.session.reader)


async def _collection(call: Call) -> dict[str, Any]:
    return await collections.collection(call.session.reader, call.required("ns"))


async def _chunk_map(call: Call) -> dict[str, Any]:
    measured = bool(call.number("measure"))
    return await collections.chunk_map(
        call.session.reader, call.required("ns"), call.number("back") or 0, measured=measured
    )


async def chunks(call: Call) -> dict[str, Any]:
    """Return the chunks of a collection between two bounds, or in one band of its map."""
    return await collections.chunk_list(
        call.session.reader,
        call.required("ns"),
        call.bound("from"),
        call.bound("to"),
        band=call.number("band"),
        measured=bool(call.number("measure")),
    )


async def _changes(call: Call) -> dict[str, Any]:
    return await collections.changes(call.session.reader, call.given.get("ns") or None)


async def heat(given: Mapping[str, str], call: Call) -> dict[str, Any]:
    """Return the heat map of a collection, by the parameters ns, measure and window.

    Raises:
        BadParameter: one is not valid.
    """
    namespace, measure, window = given.get("ns", ""), given.get("measure") or "reads", given.get("window") or "hour"
    if not namespace:
        raise BadParameter("the parameter ns is missing")
    if measure not in heat_map.MEASURES or window not in heat_map.WINDOWS:
        raise BadParameter(
            f"measure is one of {', '.join(heat_map.MEASURES)}; window one of {', '.join(heat_map.WINDOWS)}"
        )
    return await heat_map.heat_map(call.session.reader, namespace, measure, window)


async def _heat(call: Call) -> dict[str, Any]:
    return await heat(call.given, call)


async def _operations(call: Call) -> dict[str, Any]:
    return await operations.operations(call.session.reader, call.sampler)


def _order_of_shapes(call: Call) -> str:
    """Return the parameter by, the order of frequent shapes; raises BadParameter."""
    order = call.given.get("by") or "count"
    if order not in operations.ORDERS:
        raise BadParameter(f"by is one of {', '.join(operations.ORDERS)}")
    return order


async def shapes(call: Call) -> dict[str, Any]:
    """Return the frequent shapes of all collections or of the parameter ns; raises BadParameter."""
    return await operations.frequent_shapes(call.session.reader, _order_of_shapes(call), call.given.get("ns", ""))


async def _current(call: Call) -> dict[str, Any]:
    own = bool(call.number("own"))
    return await operations.current_operations(call.session.reader, await call.session.rights(), own=own)


async def _balancer(call: Call) -> dict[str, Any]:
    return await balancer.balancer(call.session.reader, call.sampler, call.settings)


async def _security(call: Call) -> dict[str, Any]:
    return await security.security(call.session.reader, call.sampler, call.settings)


async def _consistency(call: Call) -> dict[str, Any]:
    return await security.consistency(call.session.reader)


async def _explain(call: Call) -> dict[str, Any]:
    return await explaining.explained(call.session.reader, call.required("text"), call.given.get("db") or "test")


async def _dry_run(call: Call) -> dict[str, Any]:
    action = ACTIONS.get(call.required("action"))
    if action is None or action.name not in DRY_RUNS:
        raise ActionFault(f"a dry run is of one of {', '.join(DRY_RUNS)}")
    action.check(call.given)
    return await dry_run(call.session.reader, action.name, call.given) or {}


async def _act(call: Call) -> dict[str, Any]:
    action = ACTIONS.get(call.required("action"))
    if action is None:
        raise ActionFault("there is no such action")
    await perform(call.session, action, call.given, call.remote)
    return {"done": action.name, "command": action.shell(call.given)}


_NS: Final = {"ns": "the collection, DATABASE.NAME"}
_OF_ACTIONS: Final = {
    "ns?": "the collection",
    "min?": "lower bound, Extended JSON",
    "max?": "upper bound, Extended JSON",
    "shard?": "the shard",
    "host?": "a replica set, NAME/HOST:PORT",
    "zone?": "the zone",
    "key?": "the new shard key",
}

ENDPOINTS: Final = (
    Endpoint(
        "session",
        "The user of this session and what they may do.",
        _session,
        {
            "user": "NAME@DATABASE, null without access control",
            "roles": "roles of the user",
            "csrf": "the token for POST, in the field csrf or the header X-CSRF-Token",
            "may": "actions on the whole cluster that the roles allow",
        },
    ),
    Endpoint(
        "overview",
        "Routers, config servers, shards, rates, and problems in words.",
        _overview,
        {
            "at": "time of the reading",
            "title": "name of the cluster",
            "clusterId": "the id in config.version",
            "version": "of MongoDB, as routers report it",
            "balancer": "mode and whether it is in a round",
            "routers": "from config.mongos",
            "configServers": "members of the config replica set",
            "shards": "with members, sizes and disks",
            "rates": "operations per second and latencies; null without metrics",
            "hasMetrics": "whether the console reads the daemons' metrics",
            "refusals": "what the user may not read, and what did not answer",
            "problems": "severity, where, what and mend of each",
        },
    ),
    Endpoint(
        "collections",
        "All sharded collections, with chunks by shard.",
        _collections,
        {
            "shards": "names of all shards",
            "collections": "key, chunks, zones of each",
            "isComplete": "false if there are more",
            "databases": "with their primary shards",
        },
    ),
    Endpoint(
        "collection",
        "One sharded collection: key, zones, indexes, sizes by shard, skew.",
        _collection,
        {
            "ns": "the collection",
            "uuid": "its UUID",
            "key": "the shard key",
            "unique": "whether the key is unique",
            "balanced": "false if the balancer leaves it alone",
            "isResharding": "whether it is being resharded",
            "isHashed": "whether the key has a hashed field",
            "shards": "names of all shards",
            "byShard": "chunks, documents and bytes of each shard",
            "chunks": "number of chunks",
            "documents": "number of documents, with orphans",
            "bytes": "bytes of all documents",
            "skew": "how much more than the average the fullest shard has, 0 is even",
            "zones": "ranges of zones",
            "indexes": "indexes with their uses",
            "balancer": "what balancerCollectionStatus replies; null without the right",
            "refusals": "what the user may not read, and what did not answer",
        },
        _NS,
    ),
    Endpoint(
        "chunk-map",
        "The chunks of a collection as at most 600 bands in the order of the shard key.",
        _chunk_map,
        {
            "ns": "the collection",
            "key": "the shard key",
            "isHashed": "whether the first field is hashed",
            "shards": "names of all shards",
            "chunks": "number of chunks",
            "bands": "min, max, chunks by shard, jumbo, zone, movedAt, and bytes (null unless measured) of each",
            "isExact": "whether each band is one chunk",
            "zones": "ranges of zones",
            "moves": "moves that can be undone",
            "back": "moves that are undone in this reply",
            "at": "the time before which it is shown; null for now",
        },
        {
            **_NS,
            "back?": "number of moves to undo, for the map at an earlier time",
            "measure?": "1 to have shards estimate sizes, of at most a hundred bands",
        },
    ),
    Endpoint(
        "chunks",
        "The chunks within a range, at most a hundred.",
        chunks,
        {
            "ns": "the collection",
            "key": "the shard key",
            "shards": "names of all shards",
            "from": "the first key",
            "to": "the end of the range",
            "chunks": "bounds, shard, version, bytes of each",
            "hasMore": "whether there are more",
        },
        {
            **_NS,
            "from?": "Extended JSON; the smallest key without it",
            "to?": "Extended JSON; the largest key without it",
            "band?": "number of a band of the map, in place of the range",
            "measure?": "1: estimate the bytes of each chunk",
        },
    ),
    Endpoint(
        "changes",
        "The newest events of config.changelog.",
        _changes,
        {"changes": "time, what, ns, shard and details of each"},
        {"ns?": "one collection"},
    ),
    Endpoint(
        "heat-map",
        "How often ranges of a shard key were read and written: ranges down, time across. Estimates of the shards.",
        _heat,
        {
            "ns": "the collection",
            "key": "the shard key",
            "measure": "what the cells have",
            "window": "the time shown",
            "from": "its beginning",
            "to": "its end",
            "columnSeconds": "length of a column",
            "columns": "beginning of each column",
            "bands": "min, max, reads, writes, documents and bytes of each range, at most 40",
            "cells": "for each band a number for each column",
            "largest": "the largest of them",
            "shapes": "slow operations on the collection in the routers' recent logs, by shape",
            "refusals": "what the user may not read, and what did not answer",
        },
        {
            **_NS,
            "measure?": "reads, writes, documents or bytes; reads without it",
            "window?": "hour, hours, day or weeks; hour without it",
        },
    ),
    Endpoint(
        "operations",
        "Rates and latencies by command and shard, slow shapes, cursors, transactions and sessions.",
        _operations,
        {
            "hasMetrics": "whether the console reads the daemons' metrics",
            "at": "end of the latest interval",
            "seconds": "its length",
            "total": "rate, errors and quantiles in milliseconds of all commands",
            "scattered": "share of operations that several shards received",
            "commands": "the same by command",
            "shards": "the same by shard",
            "history": "the last half hour as columns",
            "router": "connections, cursors, transactions and sessions of the router that answers",
            "slow": "slow operations in the routers' recent logs, by shape",
            "refusals": "what the user may not read, and what did not answer",
        },
    ),
    Endpoint(
        "query-shapes",
        "Frequent operations by shape, as the routers count them ($queryStats), added up over all routers.",
        shapes,
        {
            "order": "the order of the shapes",
            "ns": "the only collection; empty for all",
            "shapes": "ns, command, shape, hash, counts, milliseconds, shards, documents and bytes of the first ones",
            "shapeCount": "number of shapes",
            "others": "count, millis and evicted of shapes that routers no longer keep apart",
            "refusals": "what the user may not read, and what did not answer",
        },
        {"by?": "count, time or scattered; count without it", "ns?": "the only collection"},
    ),
    Endpoint(
        "current-operations",
        "Operations that run now.",
        _current,
        {
            "ofAllUsers": "whether operations of other users are included",
            "operations": "opid, shard, namespace, seconds, client of each",
            "hidden": "operations of the cluster's own processes that are left out",
            "refusals": "what the user may not read, and what did not answer",
        },
        {"own?": "1: operations of the cluster's processes too"},
    ),
    Endpoint(
        "balancer",
        "The balancer's state, its next round with reasons, moves and reshardings in progress, history.",
        _balancer,
        {
            "shards": "names of all shards",
            "mode": "full or off",
            "inRound": "whether it is in a round",
            "rounds": "rounds so far",
            "window": "activeWindow of config.settings",
            "chunkSizeMB": "size of chunks",
            "autoSplit": "whether chunks are split as they grow",
            "plan": "what balancerExplain replies; null without the right",
            "migrations": "moves in config.migrations",
            "transfers": "progress of moves, from the donors' metrics",
            "reshardings": "progress of each recipient",
            "history": "past rounds",
            "moves": "past moves, splits and merges",
            "refusals": "what the user may not read, and what did not answer",
        },
    ),
    Endpoint(
        "security",
        "Users, roles, certificates, processes, and parameters of routers that differ.",
        _security,
        {
            "users": "with roles and mechanisms, without credentials",
            "roles": "roles that users have made",
            "certificates": "expiry by process",
            "hasMetrics": "whether the console reads the daemons' metrics",
            "processes": "version, start and memory of each",
            "differing": "name and values by router",
            "refusals": "what the user may not read, and what did not answer",
        },
    ),
    Endpoint(
        "consistency",
        "What checkMetadataConsistency finds now.",
        _consistency,
        {
            "at": "time of the check",
            "inconsistencies": "type, description and details of each",
            "isComplete": "false if there are more",
        },
    ),
    Endpoint(
        "explain",
        "Where a command goes and why; it is not run.",
        _explain,
        {
            "ns": "the collection",
            "command": "the command that was read",
            "filter": "the conditions by which it is routed",
            "stage": "the outermost stage of the router's plan",
            "shards": "shards that would receive it, from the router's explain where it explains the command",
            "allShards": "names of all shards",
            "isSharded": "whether the collection is sharded",
            "key": "the shard key",
            "predicates": "what the filter says of each field of the key",
            "isTargeted": "whether some shard is left out",
            "chunks": "chunks that can match, the first ones",
            "chunkCount": "number of chunks that can match",
            "chunksOfAll": "number of all chunks",
            "predictedShards": "shards that the router's rules give for the catalog's chunks",
            "refusal": "the error of a router that refuses it; null without",
            "reasons": "sentences",
            "advice": "sentences on what would target it",
        },
        {"text": "the command as in mongosh", "db?": "the database, test without it"},
        method="POST",
    ),
    Endpoint(
        "dry-run",
        "What an action would move, estimated; nothing is done.",
        _dry_run,
        {
            "moves": "ns, from, to, chunks and bytes of each; bytes are null if a size is not known",
            "chunks": "number of chunks that would move",
            "bytes": "their bytes",
            "bytesPerSecond": "rate of past moves; null without any",
            "seconds": "time at that rate; null if it is not known",
            "ranges": "ns, min and max of the zone's ranges that the moves are limited to; empty for other actions",
            "notes": "sentences on further effects",
            "refusals": "what the user may not read, and what did not answer",
        },
        {"action": f"one of {', '.join(DRY_RUNS)}", **_OF_ACTIONS},
    ),
    Endpoint(
        "act",
        "Perform an action of the console with the user's own rights; it is recorded in the log.",
        _act,
        {"done": "the action", "command": "the line of mongosh that it equals"},
        {
            "action": f"one of {', '.join(ACTIONS)}",
            **_OF_ACTIONS,
            "to?": "the shard that receives the chunk",
            "opid?": "the operation",
        },
        method="POST",
    ),
)
