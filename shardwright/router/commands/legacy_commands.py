"""Commands of old clients, shells and tests that are answered without any further effect."""

import secrets
from typing import Final

from bson.objectid import ObjectId

from shardwright.daemon.logs import recent
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.reply_builder import Reply
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_GET_LAST_ERROR: Final = 5739000
_QUERY_OPTIONS: Final = 182
"""OP_QUERY flags that mongos supported: all but oplogReplay and exhaust."""

_IDENTITY: Final = ObjectId()


async def get_last_error(operation: Operation) -> Reply:
    """Not supported any more; writes answer themselves."""
    raise CommandError(_GET_LAST_ERROR, "getLastError command is not supported")


async def available_query_options(operation: Operation) -> Reply:
    """The flags of OP_QUERY that this router knew when it existed."""
    return {"options": _QUERY_OPTIONS}


async def is_self(operation: Operation) -> Reply:
    """Identifies this process."""
    return {"id": _IDENTITY}


async def netstat(operation: Operation) -> Reply:
    """The config servers of this router."""
    return {"configserver": operation.context.catalog.client.monitor.connection_string, "isdbgrid": 1}


async def conn_pool_sync(operation: Operation) -> Reply:
    """Does nothing, as in MongoDB since connection pools keep themselves in order."""
    return {}


async def reap_logical_session_cache_now(operation: Operation) -> Reply:
    """Does nothing: a router has no transactions of sessions to reap."""
    return {}


async def clear_log(operation: Operation) -> Reply:
    """Removes the lines that getLog shows, in all processes of this router."""
    if Arguments.of(operation.request).string(b"clearLog") != "global":
        raise CommandError(ErrorCode.InvalidOptions, "Only the 'global' log can be cleared")
    recent.clear()
    await tell_siblings(operation.context, operation.request, {"clearLog": "global"})
    return {}


_MACHINE_BITS = 32


class _Machine:
    """The machine part of new ObjectIds."""

    def __init__(self) -> None:
        self.number = secrets.randbits(_MACHINE_BITS)


_MACHINE = _Machine()


async def features(operation: Operation) -> Reply:
    """The features of this server; oidReset makes it choose another machine number for ObjectIds."""
    reset = {}
    if operation.argument(b"oidReset"):
        reset["oidMachineOld"] = _MACHINE.number
        _MACHINE.number = secrets.randbits(_MACHINE_BITS)
    return {"js": {"utf8": True}, **reset, "oidMachine": _MACHINE.number}


async def start_recording_traffic(operation: Operation) -> Reply:
    """Not available: this router has no parameter trafficRecordingDirectory."""
    arguments = Arguments.of(operation.request, "startRecordingTraffic")
    arguments.string(b"filename")
    for name in (b"bufferSize", b"maxFileSize"):
        arguments.maybe_integer(name, minimum=None)
    raise CommandError(ErrorCode.BadValue, "Traffic recording directory not set")


async def stop_recording_traffic(operation: Operation) -> Reply:
    """Fails, since no traffic is being recorded."""
    raise CommandError(ErrorCode.BadValue, "Traffic recording not active")
