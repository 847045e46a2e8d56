"""The ``_shardsvr`` commands that run DDL on a database's primary shard, and their replies."""

from collections.abc import Sequence
from typing import Any, Final

from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    array_of_documents,
    element,
    encode_elements,
    from_elements,
    raw_document,
    spans,
)
from shardwright.wire.request import Request

MAJORITY: Final = {"w": "majority", "wtimeout": 60_000}
"""The write concern of DDL, regardless of the client's."""

_GENERIC_ARGUMENTS: Final = frozenset(
    {
        b"$clusterTime",
        b"$db",
        b"$readPreference",
        b"apiDeprecationErrors",
        b"apiStrict",
        b"apiVersion",
        b"lsid",
        b"maxTimeMS",
        b"mayBypassWriteBlocking",
        b"readConcern",
        b"txnNumber",
        b"writeConcern",
    }
)
"""Generic arguments, which are not copied. The shard's command has its own, or receives them in any case."""


def coordinated_command(request: Request, name: str) -> bytes:
    """Build the body of a command with the client's arguments, but another name."""
    elements = []
    for position, (field, (kind, _, value_start, value_end)) in enumerate(spans(request.body)):
        if position == 0:
            field = name.encode()
        elif field in _GENERIC_ARGUMENTS:
            continue
        elements.append(bytes((kind,)) + field + b"\0" + request.body[value_start:value_end])
    return from_elements(b"".join(elements) + encode_elements({"writeConcern": MAJORITY, "$db": request.db}))


def command_body(db: str, command: dict[str, Any]) -> bytes:
    """Build the body of a ``_shardsvr`` command whose arguments are not only the client's."""
    return from_elements(encode_elements({**command, "writeConcern": MAJORITY, "$db": db}))


_INDEXES: Final = b"indexes"
_HOW_SENT: Final = frozenset({b"lsid", b"txnNumber", b"readConcern", b"mayBypassWriteBlocking", _INDEXES})
"""Generic arguments, and the argument that may be in a document sequence outside of the body."""


def creation(request: Request) -> bytes | None:
    """Build the command that creates indexes on all owners of a collection; None if the client's is malformed."""
    try:
        indexes = request.documents(_INDEXES)
    except CommandError:
        return None
    kept = [
        request.body[start:end]
        for name, (_, start, _, end) in spans(request.body)
        if name not in _HOW_SENT and not name.startswith(b"$")
    ]
    command = from_elements(b"".join((*kept, element(_INDEXES, ARRAY, array_of_documents(indexes)))))
    name = "_shardsvrCreateIndexes"
    return command_body(request.db, {name: request.collection, "createIndexesRequest": raw_document(command)})


def replies_of_owners(reply: ShardReply) -> Sequence[ShardReply]:
    """Extract the replies of the owners from the primary shard's reply."""
    body, (_, _, shards_start, _) = reply.body, reply.fields[b"shards"]
    return [
        ShardReply(shard.decode(), "", op_msg(body[start:end], request_id=next_request_id()))
        for shard, (_, _, start, end) in spans(body, shards_start)
    ]
