"""The checks common to all commands of the config server: primary, database, write concern, time limit."""

import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import trio

from shardwright.configd.commands.config_commands import CONFIG_COMMANDS
from shardwright.configd.commands.operation import ConfigCommand, Operation, WriteConcernRule
from shardwright.configd.term.term import Term
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.request import Request

_NOT_PRIMARY: Final = "not primary"


async def run_config_command(
    request: Request, client_address: str, wait_for_term: Callable[[], Awaitable[Term | None]]
) -> dict[str, Any]:
    """The reply, without gossip fields.

    Raises:
        CommandError: NotWritablePrimary, the mongod is not primary; InterruptedDueToReplStateChange, it has stepped
            down; MaxTimeMSExpired; or the command's own error.
    """
    command = CONFIG_COMMANDS[request.name]
    command.check_database(request)
    _check_write_concern(command, request)
    term = await wait_for_term()
    if term is None:
        raise CommandError(ErrorCode.NotWritablePrimary, _NOT_PRIMARY)
    command.check_arguments(request)
    operation = Operation(term, request, client_address)
    try:
        with trio.fail_after(_seconds_max(request)):
            reply = await term.run(lambda: command.handler(operation))
    except trio.TooSlowError:
        raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit") from None
    except BackendError as error:
        # The local mongod is gone; shards that do not answer are handled by the code that calls them.
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, f"operation was interrupted: {error}") from error
    return {**reply, "ok": 1.0}


def _check_write_concern(command: ConfigCommand, request: Request) -> None:
    write_concern = request.get(b"writeConcern")
    if command.write_concern is WriteConcernRule.UNSUPPORTED:
        if write_concern is not None:
            raise CommandError(ErrorCode.InvalidOptions, "Command does not support writeConcern")
        return
    if command.write_concern is WriteConcernRule.ANY:
        return
    if not isinstance(write_concern, Mapping) or write_concern.get("w") != "majority":
        got = request.raw_object(b"writeConcern")
        shown = '{ w: 1, wtimeout: 0, provenance: "implicitDefault" }' if got is None else document_text(got)
        raise CommandError(
            ErrorCode.InvalidOptions, f'"{command.name}" must be called with majority writeConcern, got: {shown} '
        )


def _seconds_max(request: Request) -> float:
    milliseconds = request.get(b"maxTimeMS")
    if not isinstance(milliseconds, int | float) or milliseconds <= 0:
        return math.inf
    return milliseconds / 1000
