"""Commands about the balancer: switching it, asking what it does and why, and what it may do with a collection."""

from typing import Final

from shardwright.router.commands.chunks import fresh_table, two_bounds
from shardwright.router.commands.command_registry import command
from shardwright.router.commands.sharding import MAJORITY
from shardwright.router.ddl.chunk_choice import chunk_of_bounds, chunk_of_query
from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.arguments import full_namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, raw_document

_INTERNAL_FIELDS: Final = frozenset({"$clusterTime", "operationTime", "$configTime", "$topologyTime", "ok"})


@command("balancerStart", admin_only=True)
async def balancer_start(operation: Operation) -> Reply:
    """Switches the balancer on."""
    return await _balancer(operation, "_configsvrBalancerStart")


@command("balancerStop", admin_only=True)
async def balancer_stop(operation: Operation) -> Reply:
    """Switches the balancer off."""
    return await _balancer(operation, "_configsvrBalancerStop")


@command("balancerStatus", admin_only=True, reads=True)
async def balancer_status(operation: Operation) -> Reply:
    """Whether the balancer is switched on, and what it is doing."""
    reply = await operation.context.catalog.command({"_configsvrBalancerStatus": 1})
    return {name: reply[name] for name in ("mode", "inBalancerRound", "numBalancerRounds", "term") if name in reply}


@command("balancerExplain", admin_only=True, reads=True)
async def balancer_explain(operation: Operation) -> Reply:
    """Shows what the balancer's next round would do, and why, without doing it; an addition of ours."""
    about = operation.argument(b"balancerExplain")
    reply = await operation.context.catalog.command({"_configsvrBalancerExplain": about})
    return {name: value for name, value in reply.items() if name not in _INTERNAL_FIELDS}


@command("balancerCollectionStatus", admin_only=True, reads=True)
async def balancer_collection_status(operation: Operation) -> Reply:
    """Whether a collection is placed as the balancer wants it."""
    namespace = str(full_namespace(operation.request))
    reply = await operation.context.catalog.command({"_configsvrBalancerCollectionStatus": namespace})
    return {name: value for name, value in reply.items() if name not in _INTERNAL_FIELDS}


@command("configureCollectionBalancing", admin_only=True)
async def configure_collection_balancing(operation: Operation) -> Reply:
    """Sets a collection's chunk size."""
    namespace = str(full_namespace(operation.request))
    options = Arguments.of(operation.request).present(b"chunkSize", b"defragmentCollection", b"enableAutoSplitter")
    await operation.context.catalog.command({"_configsvrConfigureCollectionBalancing": namespace, **options})
    operation.context.routing.forget_collection(namespace)
    return {}


@command("clearJumboFlag", admin_only=True)
async def clear_jumbo_flag(operation: Operation) -> Reply:
    """Lets a chunk that was too large to be moved be moved again."""
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
