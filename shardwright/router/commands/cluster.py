"""Commands about the whole cluster: shards, zones, the balancer, and the router's cache."""

from typing import Any, Final

from shardwright.router.commands.chunks import chunk_of_bounds, chunk_of_query, fresh_table, two_bounds
from shardwright.router.commands.sharding import MAJORITY
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.reply_builder import Reply
from shardwright.sharding.namespace import Namespace, full_namespace
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import EMPTY_DOCUMENT, is_string, raw_document

_BOUND_OVERHEAD_BYTES = 32


async def add_shard(operation: Operation) -> Reply:
    """Makes a replica set a shard of this cluster."""
    request = operation.request
    adding: dict[str, Any] = {
        "_configsvrAddShard": Arguments.of(request).string(request.name.encode()),
        **Arguments.of(request).present(b"name", b"maxSize"),
        "writeConcern": MAJORITY,
    }
    reply = await operation.context.catalog.command(adding)
    await operation.context.shards.reload()
    return {"shardAdded": reply["shardAdded"]}


async def remove_shard(operation: Operation) -> Reply:
    """Drains a shard and, once it is empty, removes it from this cluster; to be repeated until it is removed."""
    request = operation.request
    identifier = Arguments.of(request).string(request.name.encode())
    await operation.context.shards.reload()
    shard = operation.context.shards.find(identifier)
    if shard is None:
        raise CommandError(ErrorCode.ShardNotFound, f"Shard {identifier} not found")
    reply = await operation.context.catalog.command({"_configsvrRemoveShard": shard.id, "writeConcern": MAJORITY})
    await operation.context.shards.reload()
    names = ("msg", "state", "shard", "remaining", "note", "dbsToMove")
    return {name: reply[name] for name in names if name in reply}


async def list_shards(operation: Operation) -> Reply:
    """The shards of this cluster according to the catalog."""
    documents = await operation.context.catalog.find("shards", {})
    return {"shards": [raw_document(document) for document in documents]}


async def add_shard_to_zone(operation: Operation) -> Reply:
    """Puts a shard into a zone."""
    return await _zone_membership(operation, "_configsvrAddShardToZone")


async def remove_shard_from_zone(operation: Operation) -> Reply:
    """Takes a shard out of a zone."""
    return await _zone_membership(operation, "_configsvrRemoveShardFromZone")


async def update_zone_key_range(operation: Operation) -> Reply:
    """Assigns a range of shard key values to a zone, or to none."""
    request = operation.request
    await operation.context.catalog.command(
        {
            "_configsvrUpdateZoneKeyRange": str(full_namespace(request)),
            "min": raw_document(Arguments.of(request).raw(b"min")),
            "max": raw_document(Arguments.of(request).raw(b"max")),
            "zone": operation.argument(b"zone"),
            "writeConcern": MAJORITY,
        }
    )
    return {}


async def get_shard_map(operation: Operation) -> Reply:
    """The hosts of all shards as this router knows them."""
    await operation.context.shards.all_ids()
    shards = operation.context.shards.known()
    return {
        "map": {shard.id: shard.connection_string for shard in shards},
        "hosts": {address: shard.id for shard in shards for address in sorted(shard.client.monitor.members)},
        "connStrings": {shard.connection_string: shard.id for shard in shards},
    }


async def get_shard_version(operation: Operation) -> Reply:
    """The version of a database or a collection in this router's cache."""
    request = operation.request
    namespace = Namespace.parse(request.collection)
    routing_cache = operation.context.routing
    if not namespace.collection:
        database = await routing_cache.database(namespace.db)
        version = {} if database.version is None else database.version.to_document()
        return {"primaryShard": database.primary, "version": version}
    table = (await routing_cache.collection(str(namespace))).table
    if table is None:
        raise CommandError(ErrorCode.NamespaceNotSharded, f"Collection {namespace} is not sharded.")
    reply: dict[str, Any] = {
        "version": table.collection_version.lastmod,
        "versionEpoch": table.collection.epoch,
        "versionTimestamp": table.collection.timestamp,
    }
    if Arguments.of(request).boolean(b"fullMetadata"):
        reply |= _chunk_bounds(table)
    return reply


def _chunk_bounds(table: RoutingTable) -> dict[str, Any]:
    """Return the bounds of all chunks, unless they are too large for a reply."""
    bounds = []
    size = 0
    for chunk in table.chunks():
        size += len(chunk.min) + len(chunk.max) + _BOUND_OVERHEAD_BYTES
        if size > BSON_OBJECT_BYTES_MAX:
            return {"exceededSize": True}
        bounds.append([raw_document(chunk.min), raw_document(chunk.max)])
    return {"chunks": bounds}


async def flush_router_config(operation: Operation) -> Reply:
    """Makes all processes of this router reload everything, one database or one collection from the catalog."""
    request = operation.request
    target = operation.argument(request.name.encode())
    routing_cache = operation.context.routing
    if not is_string(target):
        routing_cache.forget_all()
    elif "." in target:
        routing_cache.forget_collection(target)
    else:
        routing_cache.forget_database(target)
    await tell_siblings(operation.context, request, {"flushRouterConfig": target})
    return {"flushed": True}


async def _zone_membership(operation: Operation, name: str) -> Reply:
    request = operation.request
    await operation.context.catalog.command(
        {
            name: Arguments.of(request).string(request.name.encode()),
            "zone": Arguments.of(request).string(b"zone"),
            "writeConcern": MAJORITY,
        }
    )
    return {}


_INTERNAL_FIELDS: Final = frozenset({"$clusterTime", "operationTime", "$configTime", "$topologyTime", "ok"})


async def balancer_start(operation: Operation) -> Reply:
    """Switches the balancer on."""
    return await _balancer(operation, "_configsvrBalancerStart")


async def balancer_stop(operation: Operation) -> Reply:
    """Switches the balancer off."""
    return await _balancer(operation, "_configsvrBalancerStop")


async def balancer_status(operation: Operation) -> Reply:
    """Whether the balancer is switched on, and what it is doing."""
    reply = await operation.context.catalog.command({"_configsvrBalancerStatus": 1})
    return {name: reply[name] for name in ("mode", "inBalancerRound", "numBalancerRounds", "term") if name in reply}


async def balancer_explain(operation: Operation) -> Reply:
    """Shows what the balancer's next round would do, and why, without doing it; an addition of ours."""
    about = operation.argument(b"balancerExplain")
    reply = await operation.context.catalog.command({"_configsvrBalancerExplain": about})
    return {name: value for name, value in reply.items() if name not in _INTERNAL_FIELDS}


async def balancer_collection_status(operation: Operation) -> Reply:
    """Whether a collection is placed as the balancer wants it."""
    namespace = str(full_namespace(operation.request))
    reply = await operation.context.catalog.command({"_configsvrBalancerCollectionStatus": namespace})
    return {name: value for name, value in reply.items() if name not in _INTERNAL_FIELDS}


async def configure_collection_balancing(operation: Operation) -> Reply:
    """Sets a collection's chunk size."""
    namespace = str(full_namespace(operation.request))
    options = Arguments.of(operation.request).present(b"chunkSize", b"defragmentCollection", b"enableAutoSplitter")
    await operation.context.catalog.command({"_configsvrConfigureCollectionBalancing": namespace, **options})
    operation.context.routing.forget_collection(namespace)
    return {}


async def clear_jumbo_flag(operation: Operation) -> Reply:
    """Clears the jumbo flag of a chunk, so that the chunk can be moved again."""
    table = await fresh_table(operation)
    arguments = Arguments.of(operation.request)
    query = arguments.maybe_raw(b"find")
    bounds = arguments.maybe_raw_documents(b"bounds")
    if (query is None or query == EMPTY_DOCUMENT) == (not bounds):
        raise CommandError(
            ErrorCode.InvalidOptions, "Need to specify either a find query, or both lower and upper bounds."
        )
    if bounds:
        chunk = chunk_of_bounds(table, two_bounds(bounds))
    else:
        assert query is not None
        chunk = chunk_of_query(table, query)
    await operation.context.catalog.command(
        {
            "_configsvrClearJumboFlag": str(table.namespace),
            "epoch": table.collection.epoch,
            "minKey": raw_document(chunk.min),
            "maxKey": raw_document(chunk.max),
            "writeConcern": MAJORITY,
        }
    )
    operation.context.routing.forget_collection(str(table.namespace))
    return {}


async def _balancer(operation: Operation, name: str) -> Reply:
    max_time = Arguments.of(operation.request).present(b"maxTimeMS")
    await operation.context.catalog.command({name: 1, **max_time})
    return {}
