"""Other collections that a pipeline reads or writes: the one shard that runs it must have them whole."""

from router.operation import Operation
from router.reads.aggregate import WRITING_STAGES
from router.reads.pipeline import Pipeline
from wire.error_codes import ErrorCode
from wire.errors import CommandError


async def check_foreign_collections(operation: Operation, pipeline: Pipeline, shard: str) -> None:
    """Refuse a pipeline that names a collection of which ``shard`` has not everything.

    Raises:
        CommandError: CommandNotSupported.
    """
    routing_cache = operation.router.routing
    is_writing = not WRITING_STAGES.isdisjoint(pipeline.names)
    for namespace in pipeline.namespaces_read_or_written(operation.request.db):
        try:
            routing = await routing_cache.collection(str(namespace), create_database=is_writing)
        except CommandError as error:
            if error.code == ErrorCode.NamespaceNotFound:
                continue  # nothing is there to be read
            raise
        if routing.is_sharded:
            where = "it is sharded"
        elif routing.primary != shard:
            where = f"it is on {routing.primary}"
        else:
            continue
        raise CommandError(
            ErrorCode.CommandNotSupported,
            f"This aggregation runs on {shard} and names the collection {namespace}, but {where}: a pipeline over "
            "several shards may only filter and transform documents of one collection",
        )
