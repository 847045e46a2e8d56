"""``_configsvrAbortReshardCollection``, ``…Commit…`` and ``…Cleanup…``: ending the operation under way."""

from contextlib import suppress
from typing import Any

from shardwright.configd.commands.command_registry import config_command
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
        CommandError: NoSuchReshardCollection; ReshardCollectionCommitted, it is too late.
    """
    try:
        await _abort(operation, await _active(operation))
    except OperationOverError:
        raise _none(operation) from None
    return {}


@config_command("_configsvrCommitReshardCollection")
async def commit_reshard_collection(operation: Operation) -> dict[str, Any]:
    """Have writes blocked as soon as everything is cloned, however far the recipients are behind; wait for the end.

    Raises:
        CommandError: NoSuchReshardCollection; or the error for which the operation was aborted.
    """
    found = await _active(operation)
    operation.primary.reshardings.control(found.id).commit_requested.set()
    try:
        await run_operation(operation.primary, found)
    except OperationOverError:
        raise _none(operation) from None
    return {}


@config_command("_configsvrCleanupReshardCollection")
async def cleanup_reshard_collection(operation: Operation) -> dict[str, Any]:
    """Abort the operation if there is one; its coordinator then leaves nothing behind.

    Raises:
        CommandError: ReshardCollectionCommitted, it is too late.
    """
    found = await ReshardingStore(operation.primary.catalog).active()
    if found is not None and found.namespace == operation.namespace:
        with suppress(OperationOverError):
            await _abort(operation, found)
    return {}


async def _active(operation: Operation) -> ReshardingOperation:
    found = await ReshardingStore(operation.primary.catalog).active()
    if found is None or found.namespace != operation.namespace:
        raise _none(operation)
    return found


def _none(operation: Operation) -> CommandError:
    return CommandError(
        ErrorCode.NoSuchReshardCollection,
        f"Could not find reshardCollection operation for namespace {operation.namespace}",
    )


async def _abort(operation: Operation, found: ReshardingOperation) -> None:
    operation.primary.reshardings.control(found.id).abort()
    try:
        await run_operation(operation.primary, found)
    except CommandError as error:
        # It may have failed by itself in the same moment.
        logger.info("A resharding operation was aborted", namespace=str(found.namespace), error=str(error))
    else:
        raise CommandError(
            ErrorCode.ReshardCollectionCommitted, "Can't abort reshardCollection, it has already been committed"
        )
