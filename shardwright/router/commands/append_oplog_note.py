"""``appendOplogNote``."""

import bson

from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.coordinated import MAJORITY
from shardwright.router.ddl.raw_replies import merge_raw
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import connection_strings
from shardwright.router.operations.scatter import scatter
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import OBJECT, raw_document
from shardwright.wire.request import Request
from shardwright.wire.type_names import type_name


@command("appendOplogNote", admin_only=True, supports_write_concern=True)
async def append_oplog_note(operation: Operation) -> Reply:
    """Writes a note into the oplogs of all shards."""
    data = _data(operation.request)
    body = bson.encode({"appendOplogNote": 1, "data": raw_document(data), "writeConcern": MAJORITY, "$db": "admin"})
    shards = await operation.context.shards.all_ids()
    replies = await scatter(operation, {shard: op_msg(body, request_id=next_request_id()) for shard in shards})
    return merge_raw(replies, await connection_strings(operation, replies))


def _data(request: Request) -> bytes:
    """The note.

    Raises:
        CommandError: NoSuchKey, TypeMismatch.
    """
    span = request.fields.get(b"data")
    if span is None:
        raise CommandError(ErrorCode.NoSuchKey, 'Missing expected field "data"')
    if span[0] != OBJECT:
        raise CommandError(
            ErrorCode.TypeMismatch, f'"data" had the wrong type. Expected object, found {type_name(span[0])}'
        )
    return request.body[span[2] : span[3]]
