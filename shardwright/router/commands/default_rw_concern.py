"""``getDefaultRWConcern`` and ``setDefaultRWConcern``; the config servers keep the defaults."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.router.commands.command_registry import command
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.reply_fields import answer_in
from shardwright.wire.arguments import Arguments

_MAJORITY: Final = {"w": "majority"}
_GETTING: Final = "getDefaultRWConcern"


@command(_GETTING, admin_only=True, reads=True)
async def get_default_rw_concern(operation: Operation) -> Reply:
    """The read and write concern of requests that have none."""
    arguments = Arguments.of(operation.request)
    arguments.refuse_unknown((b"getDefaultRWConcern", b"inMemory"))
    if arguments.boolean(b"inMemory"):
        return {**operation.context.default_concerns.report, "inMemory": True}
    return await _take(operation, {_GETTING: 1})


@command("setDefaultRWConcern", admin_only=True, supports_write_concern=True)
async def set_default_rw_concern(operation: Operation) -> Reply:
    """Sets the read or write concern of requests that have none, for the whole cluster."""
    request = operation.request
    arguments = Arguments.of(request)
    arguments.refuse_unknown((b"setDefaultRWConcern", b"defaultReadConcern", b"defaultWriteConcern"))
    defaults = arguments.present(b"defaultReadConcern", b"defaultWriteConcern")
    reply = await _take(operation, {"setDefaultRWConcern": 1, **defaults, "writeConcern": _MAJORITY})
    await tell_siblings(operation.context, request, {_GETTING: 1})
    return reply


async def _take(operation: Operation, command_body: Mapping[str, Any]) -> dict[str, Any]:
    """The answer of the config servers, whose defaults apply from now on.

    Raises:
        CommandError: HostUnreachable, or the config server's error.
    """
    answer = answer_in(await operation.context.catalog.command(command_body))
    operation.context.default_concerns.take(answer)
    return dict(answer)
