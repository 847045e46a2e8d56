"""A stream as the input of a mongod's pipeline.

If the documents are few, the mongod is handed them. Otherwise it reads them from this router, through a cursor of the
router that ``$mergeCursors`` names.
"""

from typing import Final

import bson

from shardwright.daemon.user_names import SYSTEM
from shardwright.router.cursors.manager import CursorManager
from shardwright.router.cursors.session import NOBODY, CursorOwner
from shardwright.router.joins.environment import JoinEnvironment
from shardwright.router.joins.stage_building import documents_stage, stage
from shardwright.router.joins.stream_cursor import StreamCursor
from shardwright.router.joins.streams import DocumentStream, PrefetchedStream
from shardwright.sharding.namespace import Namespace

HANDED_BYTES_MAX: Final = 1024 * 1024

_ROUTER: Final = "router"


class HandedStream:
    """See the module.

    Attributes:
        stage: the raw first stage.
        is_read_here: the mongod reads the documents from this router.
    """

    def __init__(self, cursors: CursorManager, stage: bytes, cursor_id: int = 0) -> None:
        self._cursors = cursors
        self._cursor_id = cursor_id
        self.stage = stage
        self.is_read_here = bool(cursor_id)

    def discard(self) -> None:
        """End the stream, which no mongod is going to read, or has failed to read."""
        if self._cursor_id:
            self._cursors.kill(self._cursor_id)


async def hand_over(
    environment: JoinEnvironment, stream: DocumentStream, bytes_max: int = HANDED_BYTES_MAX
) -> HandedStream:
    """Prepare a stream for a mongod.

    Args:
        environment: of the aggregation.
        stream: the documents.
        bytes_max: up to which size they are handed over rather than read from the router.

    Raises:
        CommandError: the first of them could not be read.
    """
    cursors = environment.operation.context.cursors
    first: list[bytes] = []
    size = 0
    while batch := await stream.next_batch():
        first += batch
        size += sum(map(len, batch))
        if size > bytes_max:
            return _readable(environment, PrefetchedStream(first, stream))
    return HandedStream(cursors, documents_stage(first))


def _readable(environment: JoinEnvironment, stream: DocumentStream) -> HandedStream:
    operation = environment.operation
    context = operation.context
    namespace = str(Namespace.collectionless_aggregate(environment.db))
    # The mongod reads it without a session, as a part of the cluster rather than as our client. It ends the cursor when
    # its own is ended, and may read nothing for as long as the client is content with what the mongod has.
    reader = NOBODY if context.access is None else CursorOwner(user=SYSTEM.digest)
    session_key = CursorOwner.of(operation.request, operation.user).session_key
    cursor = StreamCursor(context.clock, namespace, stream)
    cursor_id = context.cursors.open(cursor, reader, session_key=session_key)
    reply = {"cursor": {"firstBatch": [], "id": bson.Int64(cursor_id), "ns": namespace}, "ok": 1.0}
    remote = {"shardId": _ROUTER, "hostAndPort": context.options.address, "cursorResponse": reply}
    merging = {"compareWholeSortKey": False, "remotes": [remote], "nss": namespace, "allowPartialResults": False}
    return HandedStream(context.cursors, stage("$mergeCursors", merging), cursor_id)
