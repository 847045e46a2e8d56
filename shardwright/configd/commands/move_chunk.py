"""``_configsvrMoveChunk``: a shard offers a chunk, which may move to a shard that has less data."""

from typing import Any

from shardwright.configd.balancer.actions import move
from shardwright.configd.balancer.cluster_view import read_view
from shardwright.configd.balancer.configuration import Configuration
from shardwright.configd.balancer.round import answers_for
from shardwright.configd.balancer.shown import shown
from shardwright.configd.catalog.collection_chunks import CollectionChunks, find_collection
from shardwright.configd.catalog.transactions import Transaction
from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.sharding.balancing.questions import Candidate
from shardwright.sharding.balancing.single_chunk import place_offered
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.balancer")


@config_command("_configsvrMoveChunk")
async def move_chunk(operation: Operation) -> dict[str, Any]:
    """Move a chunk to the shard with the least data of its collection, if that is another one and the balancer is on.

    A chunk that has changed since it was offered stays where it is.

    Raises:
        CommandError: CommandNotSupported, a shard to move to is given, for which there is ``_configsvrMoveRange``;
            NamespaceNotFound; the donor's error.
    """
    arguments, primary = operation.arguments, operation.primary
    if arguments.has(b"toShard"):
        raise CommandError(ErrorCode.CommandNotSupported, "_configsvrMoveChunk with toShard is not supported")
    namespace = Namespace.parse_collection(arguments.string(b"ns"))
    configuration = await Configuration().reread(primary.catalog)
    offered = await _offered(operation, namespace)
    view = await read_view(primary, configuration, str(namespace))
    if offered is None or not view.collections or not configuration.is_valid or configuration.balancer.mode == "off":
        return {}
    collection = view.collections[0]
    if collection.zones.bounds_inside(offered.range):
        return {}
    decided = await answers_for(primary, view).drive(place_offered(view.cluster, collection, offered))
    if decided is not None:
        logger.info("Moving the hot end of a collection", **shown(decided.to_document()))
        await move(primary, view, configuration, decided)
    return {}


async def _offered(operation: Operation, namespace: Namespace) -> Candidate | None:
    """The chunk that is offered; None if it has other bounds or another owner by now."""
    arguments = operation.arguments
    low, high, shard = arguments.raw(b"min"), arguments.raw(b"max"), arguments.string(b"shard")
    epoch = arguments.object_id(b"lastmodEpoch")

    async def work(transaction: Transaction) -> Candidate | None:
        collection = await find_collection(transaction, str(namespace))
        if collection is None:
            raise CommandError(ErrorCode.NamespaceNotFound, f"collection {namespace} not found")
        bounds = ChunkRange.of(collection.key, low, high)
        chunk = await CollectionChunks(transaction, collection).exactly(bounds)
        if chunk is None or chunk.shard != shard or chunk.jumbo or collection.epoch != epoch:
            return None
        return Candidate(bounds, shard)

    return await operation.primary.catalog.transaction(work)
