"""``_configsvrRemoveTags``: remove the zone ranges of a collection."""

from typing import Any, Final

from shardwright.configd.commands.command_registry import config_command
from shardwright.configd.commands.operation import Operation
from shardwright.wire.errors import CommandError

_NOT_RETRYABLE: Final = 5748800
"""MongoDB's code for a command that must be sent as a retryable write but was not."""


@config_command("_configsvrRemoveTags")
async def remove_tags(operation: Operation) -> dict[str, Any]:
    """Remove all zone ranges of the collection.

    Raises:
        CommandError: 5748800, there is no session or transaction number.
    """
    namespace = str(operation.namespace)
    if not (operation.arguments.has(b"lsid") and operation.arguments.has(b"txnNumber")):
        raise CommandError(_NOT_RETRYABLE, f"{operation.name} must be run as a retryable write")

    async with operation.primary.locks.hold("zones"):
        await operation.primary.catalog.delete("tags", {"ns": namespace})
    return {}
