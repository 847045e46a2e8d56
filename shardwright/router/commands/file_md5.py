"""``filemd5``: the MD5 of a file in GridFS."""

from typing import Any, Final

import bson

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.reads.targeting import shards_for_read
from shardwright.router.replies.reply_builder import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document, encode_elements, is_string, without

_BY_FILE: Final = {"files_id": 1}
_BY_CHUNK: Final = {"files_id": 1, "n": 1}
_SUITABLE: Final = (None, _BY_FILE, _BY_CHUNK)
_ONE_AFTER_ANOTHER: Final = frozenset({b"partialOk", b"startAt", b"md5state"})
_NO_FILE: Final = {"numChunks": 0, "md5": "d41d8cd98f00b204e9800998ecf8427e"}


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
            [shard] = _shards(operation, routing, {})
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
        [shard] = _shards(operation, routing, {"n": done})
        added = encode_elements({"partialOk": True, "startAt": done, **state})
        frame = forwarded(operation, added + routing.versions_for(shard), body)
        reply = await send_to_one(operation, shard, frame, may_repeat=True)
        reply.raise_for_error()
        if reply.get(b"numChunks") == done:
            return {"numChunks": done, "md5": reply.get(b"md5")}
        done = reply.get(b"numChunks")
        state = {"md5state": reply.get(b"md5state")}


def _shards(operation: Operation, routing: CollectionRouting, also: dict[str, Any]) -> tuple[str, ...]:
    """Return the shards with the file's chunk of this number, or with all its chunks."""
    filter_document = bson.encode({"files_id": operation.argument(b"filemd5"), **also})
    return shards_for_read(routing, filter_document, None)
