"""``_configsvrSetUserWriteBlockMode``: block the writes of users in the whole cluster, or allow them again."""

from typing import Any

from shardwright.configd.commands.command_registry import WriteConcernRule, config_command
from shardwright.configd.commands.operation import Operation
from shardwright.configd.user_writes.coordinator import set_user_write_block_mode as set_everywhere
from shardwright.wire.arguments import Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@config_command("_configsvrSetUserWriteBlockMode")
async def set_user_write_block_mode_of_cluster(operation: Operation) -> dict[str, Any]:
    """Set the mode on all servers, and return when it is in force.

    Raises:
        CommandError: ConflictingOperationInProgress, the other mode is being set.
    """
    block = operation.arguments.required_boolean(b"global", Strictness.BOOL)
    await set_everywhere(operation.primary, block=block)
    return {}


@config_command("setUserWriteBlockMode", write_concern=WriteConcernRule.UNSUPPORTED)
async def set_user_write_block_mode(_operation: Operation) -> dict[str, Any]:
    """Refuse: the servers of a cluster change together.

    Raises:
        CommandError: IllegalOperation.
    """
    raise CommandError(ErrorCode.IllegalOperation, "setUserWriteBlockMode cannot be run on shardsvrs nor configsvrs")
