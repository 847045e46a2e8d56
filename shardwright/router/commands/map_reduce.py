"""``mapReduce``: an aggregation with JavaScript functions and a reply format of its own."""

from typing import Final

from shardwright.router.operations.aggregation import run_aggregate
from shardwright.router.operations.listed_collection import listed_collection
from shardwright.router.operations.operation import Operation
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.map_reduce import MapReduce, Output, internal_error
from shardwright.router.replies.cursor_reply import first_batch
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import ShardedViewError
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import ARRAY, array_of_documents, decode_value, element, encode_elements, find, index

_KEY_OTHER_THAN_ID: Final = 31313
_INLINE_RESULTS_TOO_LARGE: Final = 31301


async def map_reduce(operation: Operation) -> Reply:
    """Runs JavaScript functions over a collection's documents and combines their results by key."""
    request = operation.request
    arguments = MapReduce.parse(request)
    output = arguments.output
    if output.namespace is None and b"writeConcern" in request.fields:
        raise CommandError(ErrorCode.InvalidOptions, "Command does not support writeConcern")
    await refuse_view(operation)
    if output.namespace is not None:
        await _check_target(operation, output)
    aggregate = arguments.as_aggregate(request, unpack_timestamp(operation.context.clock.time.cluster_time))
    running = operation.part(aggregate)
    try:
        reply = await run_aggregate(running, operation.namespace)
        documents = first_batch(reply)
    except ShardedViewError:
        raise _on_view() from None
    except CommandError as error:
        raise internal_error(error) from error
    finally:
        operation.targeted, operation.retries = running.targeted, running.retries
    if output.namespace is not None:
        return _written(operation, output, reply)
    return _inline(operation, reply, documents)


async def refuse_view(operation: Operation) -> None:
    """Refuse a view or a time-series collection, because an aggregation would read it.

    Raises:
        CommandError: CommandNotSupportedOnView; or the primary shard could not be read.
    """
    routing = await operation.context.routing.find(operation.namespace)
    if routing is None or routing.is_sharded:
        return
    listed = await listed_collection(operation, routing)
    if listed is not None and listed["type"] in ("view", "timeseries"):
        raise _on_view()


def _inline(operation: Operation, reply: Reply, documents: list[bytes]) -> Reply:
    """Return all results in one reply."""
    if not isinstance(reply, bytes):
        return {"results": []}
    body = OpMsg(reply).body
    cursor = index(body, index(body)[b"cursor"][2])
    results = array_of_documents(documents)
    cursor_id = decode_value(body, cursor[b"id"])
    if cursor_id:
        operation.context.cursors.kill(cursor_id)
        message = "MapReduce inline results are greater than the allowed 16MB limit"
        raise CommandError(_INLINE_RESULTS_TOO_LARGE, message)
    return operation.raw_reply(element(b"results", ARRAY, results))


def _written(operation: Operation, output: Output, reply: Reply) -> Reply:
    elements = encode_elements({"result": output.result})
    if isinstance(reply, bytes):
        body = OpMsg(reply).body
        failed = find(body, b"writeConcernError")
        if failed is not None:
            elements += body[failed[1] : failed[3]]
    return operation.raw_reply(elements)


async def _check_target(operation: Operation, output: Output) -> None:
    """Refuse an output collection with an unsuitable shard key, or an unsharded one if it must be sharded.

    A missing database is created on the primary shard of the source.
    """
    cache = operation.context.routing
    routing = await cache.find(str(output.namespace))
    source = await cache.find(operation.namespace)
    if routing is None and source is not None and not output.must_be_sharded:
        routing = await cache.collection(str(output.namespace), create_database=True, primary=source.primary)
    if routing is not None:
        routing = await cache.latest_if_readable(routing)  # another router may have sharded it by another key
    is_sharded = routing is not None and routing.is_sharded
    if output.must_be_sharded and not is_sharded:
        raise internal_error(
            CommandError(
                ErrorCode.InvalidOptions,
                "Cannot use mapReduce to create a new sharded collection. Please create and shard the target "
                "collection before proceeding.",
            )
        )
    if routing is not None and not _is_by_id(routing):
        raise CommandError(
            _KEY_OTHER_THAN_ID,
            "The mapReduce target collection must either be unsharded or sharded by {_id: 1} or {_id: 'hashed'}",
        )


def _is_by_id(routing: CollectionRouting) -> bool:
    """Whether the ``_id`` alone determines a document's shard, as it also does in an unsharded collection."""
    table = routing.table
    return table is None or [field.name for field in table.collection.key_pattern.fields] == [b"_id"]


def _on_view() -> CommandError:
    return CommandError(ErrorCode.CommandNotSupportedOnView, "mapReduce on a view is not supported")
