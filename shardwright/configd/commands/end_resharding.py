"""``_configsvrAbortReshardCollection``, ``…Commit…`` and ``…Cleanup…``: ending the operation under way."""

from typing import Any

from shardwright.configd.commands.command_registry import WriteConcernRule, config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.resharding.coordinator import OperationOverError
from shardwright.configd.resharding.running import run_operation
from shardwright.configd.resharding.store import ReshardingStore
from shardwright.sharding.resharding.operation_document import ReshardingOperation
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

logger = get_logger("configd.resharding")


@config_command("_configsvrAbortReshardCollection")
async def abort_reshard_collection(operation: Operation) -> dict[str, Any]:
    """Abort the operation, and return once nothing is left of it.

    Raises:
        CommandError: NamespaceNotFound, the collection is not sharded; NoSuchReshardCollection;
            ReshardCollectionCommitted, it was too late, and the operation has ended.
    """
    found = await _active(operation)
    if found is None or not await _end(operation, found):
        raise CommandError(
            ErrorCode.NoSuchReshardCollection,
            "Could not find resharding-related metadata that matches the given namespace",
        )
    return {}


@config_command("_configsvrCommitReshardCollection")
async def commit_reshard_collection(operation: Operation) -> dict[str, Any]:
    """Have writes blocked as soon as everything is cloned, however far the recipients are behind.

    As in MongoDB, only the caller of ``reshardCollection`` waits for the end.

    Raises:
        CommandError: NamespaceNotFound, the collection is not sharded; NoSuchReshardCollection.
    """
    found = await _active(operation)
    if found is None:
        raise CommandError(
            ErrorCode.NoSuchReshardCollection, f"Could not find resharding metadata for {operation.namespace}"
        )
    operation.primary.reshardings.control(found.id).commit_requested.set()
    return {}


@config_command("_configsvrCleanupReshardCollection", write_concern=WriteConcernRule.UNSUPPORTED)
async def cleanup_reshard_collection(operation: Operation) -> dict[str, Any]:
    """Abort the operation if there is one, or wait for its end if it is too late for that.

    In either case its coordinator leaves nothing behind.

    Raises:
        CommandError: NamespaceNotFound, the collection is not sharded.
    """
    found = await _active(operation)
    if found is None:
        return {}
    try:
        await _end(operation, found)
    except CommandError as error:
        if error.code != ErrorCode.ReshardCollectionCommitted:
            raise
    return {}


async def _active(operation: Operation) -> ReshardingOperation | None:
    """The operation of the collection; None if there is none.

    Raises:
        CommandError: NamespaceNotFound, it is not sharded.
    """
    catalog, namespace = operation.primary.catalog, operation.namespace
    if await catalog.find_by_id("collections", str(namespace)) is None:
        raise CommandError(ErrorCode.NamespaceNotFound, f"collection {namespace} not found")
    found = await ReshardingStore(catalog).active()
    return found if found is not None and found.namespace == namespace else None


async def _end(operation: Operation, found: ReshardingOperation) -> bool:
    """Abort an operation and wait for its end; returns False if it had ended since it was read.

    Raises:
        CommandError: ReshardCollectionCommitted, it was too late; InterruptedDueToReplStateChange.
    """
    operation.primary.reshardings.control(found.id).abort()
    try:
        await run_operation(operation.primary, found)
    except OperationOverError:
        return False
    except CommandError as error:
        if error.code == ErrorCode.InterruptedDueToReplStateChange:
            raise
        # It may have failed by itself in the same moment.
        logger.info("A resharding operation was aborted", namespace=str(found.namespace), error=str(error))
        return True
    raise CommandError(
        ErrorCode.ReshardCollectionCommitted, "Can't abort resharding operation after the decision has been persisted"
    )
