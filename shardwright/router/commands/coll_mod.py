"""``collMod``: changing options of collections, views and indexes."""

from typing import Final

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import coordinated_command
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import send_to_primary_shard
from shardwright.router.replies.own_reply import Reply

_ARGUMENTS: Final = (
    *("index", "validator", "validationLevel", "validationAction", "viewOn", "pipeline", "recordPreImages"),
    *("changeStreamPreAndPostImages", "expireAfterSeconds", "timeseries", "cappedSize", "cappedMax", "dryRun"),
    *("collectionUUID", "isTimeseriesNamespace"),
)


@command("collMod", api_versions=("1",), supports_write_concern=True, arguments=_ARGUMENTS)
async def coll_mod(operation: Operation) -> Reply:
    """Changes options of a collection wherever it is."""
    namespace, request = operation.namespace, operation.request
    try:
        reply = await send_to_primary_shard(operation, request.db, coordinated_command(request, "_shardsvrCollMod"))
        return reply.for_client()
    finally:
        operation.context.routing.forget_collection(namespace)
