"""``_configsvrRemoveTags``: remove the zone ranges of a collection."""

from functools import partial
from typing import Any, Final

from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.daemon.sidecar.command_sessions import CommandSession, execute_once
from shardwright.wire.errors import CommandError

_NOT_RETRYABLE: Final = 5748800
"""MongoDB's code for a command that must be sent as a retryable write but was not."""


@config_command("_configsvrRemoveTags")
async def remove_tags(operation: Operation) -> dict[str, Any]:
    """Remove all zone ranges of the collection.

    It is executed once, so that a command which arrives late does not remove ranges that have been added since.

    Raises:
        CommandError: 5748800, there is no session or transaction number; TransactionTooOld, the command comes late.
    """
    namespace = str(operation.namespace)
    session = CommandSession.of(operation.request)
    if session is None:
        raise CommandError(_NOT_RETRYABLE, f"{operation.name} must be run as a retryable write")

    catalog = operation.primary.catalog
    async with operation.primary.locks.hold("zones"):
        await execute_once(catalog.mongod, session, partial(catalog.delete, "tags", {"ns": namespace}))
    return {}
