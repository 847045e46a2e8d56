"""``createIndexes`` as a command to the primary shard (``_shardsvrCreateIndexes``), and its reply. Pure."""

from collections.abc import Sequence
from typing import Final

from shardwright.router.ddl.coordinated import command_body
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.errors import CommandError
from shardwright.wire.frames import next_request_id
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import (
    ARRAY,
    array_of_documents,
    element,
    from_elements,
    raw_document,
    spans,
)
from shardwright.wire.request import Request

_INDEXES: Final = b"indexes"
_HOW_SENT: Final = frozenset({b"lsid", b"txnNumber", b"readConcern", b"mayBypassWriteBlocking", _INDEXES})
"""Arguments that say how the client's command is sent, and the one that may stand beside its body."""


def creation(request: Request) -> bytes | None:
    """The body of the command that has all owners of a collection create indexes; None if the client's is malformed."""
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
    """The replies of the owners, from that of the primary shard."""
    body, (_, _, shards_start, _) = reply.body, reply.fields[b"shards"]
    return [
        ShardReply(shard.decode(), "", op_msg(body[start:end], request_id=next_request_id()))
        for shard, (_, _, start, end) in spans(body, shards_start)
    ]
