"""``_shardsvrSetUserWriteBlockMode``: a phase of blocking the writes of users, or of allowing them again."""

from typing import Any

from shardwright.daemon.sidecar.user_write_block import Phase, UserWriteBlock
from shardwright.shardd.commands.command_registry import command
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.ddl.participant_sessions import execute_once
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request


@command("_shardsvrSetUserWriteBlockMode", admin_only=True)
async def set_user_write_block_mode_of_shard(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Carry out a phase on this shard.

    Before writes are blocked, the coordinators under way come to their end, as nothing of theirs may be refused.

    Raises:
        CommandError: TypeMismatch or BadValue, the arguments; TransactionTooOld, the command comes late.
    """
    arguments = Arguments.of(request)
    block = arguments.required_boolean(b"global", Strictness.BOOL)
    phase = _phase(arguments)

    async def enter() -> None:
        mongod = shard.context.mongod
        await UserWriteBlock(mongod, mongod.global_lock).enter(phase, block=block)
        if block and phase is Phase.PREPARE:
            await shard.coordinators.wait_user_writes_over()

    await execute_once(shard.context, request, "the writes of users", enter)
    return {}


@command("setUserWriteBlockMode", admin_only=True, primary_only=False, needs_identity=False)
async def set_user_write_block_mode(shard: ShardComponents, request: Request) -> dict[str, Any]:
    """Refuse: the servers of a cluster change together.

    Raises:
        CommandError: IllegalOperation.
    """
    raise CommandError(ErrorCode.IllegalOperation, "setUserWriteBlockMode cannot be run on shardsvrs nor configsvrs")


def _phase(arguments: Arguments) -> Phase:
    name = arguments.string(b"phase")
    try:
        return Phase(name)
    except ValueError:
        raise CommandError(
            ErrorCode.BadValue,
            f"Enumeration value '{name}' for field '_shardsvrSetUserWriteBlockMode.phase' is not a valid value.",
        ) from None
