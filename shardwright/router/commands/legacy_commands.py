"""Commands of old clients, shells and tests.

Most are answered without any further effect. ``filemd5`` returns the MD5 of a file in GridFS.
"""

import secrets
from typing import Any, Final

import bson
from bson.objectid import ObjectId

from shardwright.daemon.logs import recent
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.placement.routing_info import CollectionRouting, shards_for_read
from shardwright.router.processes.siblings import tell_siblings
from shardwright.router.replies.reply_builder import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, encode_elements, is_string, without

_GET_LAST_ERROR: Final = 5739000
_QUERY_OPTIONS: Final = 182
"""OP_QUERY flags that mongos supported: all but oplogReplay and exhaust."""

_IDENTITY: Final = ObjectId()

_BY_FILE: Final = {"files_id": 1}
_BY_CHUNK: Final = {"files_id": 1, "n": 1}
_SUITABLE: Final = (None, _BY_FILE, _BY_CHUNK)
_ONE_AFTER_ANOTHER: Final = frozenset({b"partialOk", b"startAt", b"md5state"})
_NO_FILE: Final = {"numChunks": 0, "md5": "d41d8cd98f00b204e9800998ecf8427e"}


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


async def file_md5(operation: Operation) -> Reply:
    """The MD5 of a GridFS file, whose chunks may be on several shards."""
    request = operation.request
    root = request.get(b"root", "fs")
    if not is_string(root):
        raise CommandError(ErrorCode.InvalidNamespace, "'root' must be of type String")
    namespace = Namespace(request.db, f"{root}.chunks")
    if root:  # with an empty root, a mongod reads ".chunks", a collection that cannot exist
        namespace.check_readable()

    async def attempt(routing: CollectionRouting) -> Reply:
        key = _shard_key(routing)
        if key not in _SUITABLE:
            routing = await operation.context.routing.confirmed_if_sharded(routing)
            key = _shard_key(routing)
        if key is None or key == _BY_FILE:
            [shard] = _shards_with_chunk(operation, routing, {})
            frame = forwarded(operation, routing.versions_for(shard))
            return (await send_to_one(operation, shard, frame, may_repeat=True)).for_client()
        if key != _BY_CHUNK:
            raise CommandError(
                ErrorCode.IllegalOperation,
                "The GridFS fs.chunks collection must be sharded on either {files_id:1} or {files_id:1, n:1}",
            )
        return await _piece_by_piece(operation, routing)

    try:
        return await with_routing(operation, str(namespace), attempt)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound or request.db in operation.context.routing.databases:
            raise
        return dict(_NO_FILE)


def _shard_key(routing: CollectionRouting) -> dict[str, Any] | None:
    return None if routing.table is None else decode_document(routing.table.key_pattern.document)


async def _piece_by_piece(operation: Operation, routing: CollectionRouting) -> Reply:
    """Compute the MD5 over shards in turn; each continues it over its contiguous chunks of the file."""
    body = without(operation.request.body, _ONE_AFTER_ANOTHER)
    done = 0
    state: dict[str, Any] = {}
    while True:
        [shard] = _shards_with_chunk(operation, routing, {"n": done})
        added = encode_elements({"partialOk": True, "startAt": done, **state})
        frame = forwarded(operation, added + routing.versions_for(shard), body)
        reply = await send_to_one(operation, shard, frame, may_repeat=True)
        reply.raise_for_error()
        if reply.get(b"numChunks") == done:
            return {"numChunks": done, "md5": reply.get(b"md5")}
        done = reply.get(b"numChunks")
        state = {"md5state": reply.get(b"md5state")}


def _shards_with_chunk(operation: Operation, routing: CollectionRouting, also: dict[str, Any]) -> tuple[str, ...]:
    """Return the shards with the file's chunk of this number, or with all its chunks."""
    filter_document = bson.encode({"files_id": operation.argument(b"filemd5"), **also})
    return shards_for_read(routing, filter_document, None)
