"""The shard daemon's passages of ``getMore``, which are forwarded to mongod unchanged.

A passage checks the cursor each time: whether its batches are held back, whether it hides ranges, and whether it reads
further namespaces. Batches in progress are counted as on the ordinary path.
"""

from time import perf_counter
from typing import TYPE_CHECKING, Final

from shardwright.daemon.operation_metrics import OK
from shardwright.daemon.passages import DaemonPassages
from shardwright.daemon.sidecar.noop_writer import READ_CONCERN
from shardwright.daemon.sidecar.term_fence import has_failed
from shardwright.daemon.users import RESERVED_ID_START
from shardwright.shardd.cursor_batches import BegunBatch, InvolvedCursors
from shardwright.shardd.shard_server import ShardServer
from shardwright.sharding.passage_fields import CommonFields
from shardwright.sharding.transaction_protocol import AUTOCOMMIT
from shardwright.wire.message import BODY_AT
from shardwright.wire.passages import (
    CURSOR_ID_AT,
    CURSOR_ID_END,
    EPOCH,
    FRAME_BYTES_MAX,
    OUTCOMES,
    Outcome,
    Passage,
    Range,
    is_get_more,
)
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.daemon.sidecar.mongod import Upstream

_GET_MORE: Final = "getMore"


class ShardGetMorePassage(Passage):
    """A layout of ``getMore`` requests; ``lsid`` is the place of their session, None without one."""

    __slots__ = ("lsid",)

    def __init__(self, frame: bytes, epoch: int, common: CommonFields) -> None:
        super().__init__(frame, [*common.free, (CURSOR_ID_AT, CURSOR_ID_END)], epoch)
        self.lsid: Range | None = common.lsid


class ShardBatchPassages(DaemonPassages[Passage]):
    """The passages of ``getMore``, and the table of all passages of a shard daemon.

    Args:
        involved_cursors: the cursors that read further namespaces.
    """

    def __init__(self, shard: ShardServer, involved_cursors: InvolvedCursors | None = None) -> None:
        context = shard.context
        super().__init__(
            context.metrics.labelled_counter(
                "passages", "Requests by whether a passage served them", "outcome", OUTCOMES
            )
        )
        self._shard = shard
        self._context = context
        self._involved_cursors = involved_cursors
        self._observe: Callable[[str, str, float], None] = context.metrics.operations.observe

    def _begin_batch(self, passage: ShardGetMorePassage, client: ClientConnection, frame: bytes) -> BegunBatch | None:
        """Begin a ``getMore``."""
        started = perf_counter()
        upstream: Upstream = client.state
        connection, in_use, involved = upstream.connection, self._context.open_cursors.in_use, self._involved_cursors
        if connection is None or not connection.is_quiet or client.is_disconnected or in_use.is_held:
            return None
        cursor_id, shard, lsid = frame[CURSOR_ID_AT:CURSOR_ID_END], self._shard, passage.lsid
        if (
            not shard.inherited_cursors.are_gone
            or cursor_id in shard.fenced_cursors
            or involved is None
            or involved.has(cursor_id)
            or (lsid is not None and frame.find(RESERVED_ID_START, *lsid) >= 0)
        ):
            return None
        client.is_interruptible = True
        return BegunBatch(connection, frame, started, in_use, cursor_id)

    def _finish_batch(self, client: ClientConnection, begun: BegunBatch, reply: bytes) -> bytes | None:
        """Finish a ``getMore``."""
        if has_failed(reply) or client.is_disconnected or begun.cursor_id in self._shard.fenced_cursors:
            return None
        begun.reading.end()
        self._observe(_GET_MORE, OK, perf_counter() - begun.started)
        self._outcomes[Outcome.TAKEN] += 1
        return reply

    def learn_batch(self, client: ClientConnection, request: Request, reply: bytes | None, epoch: int) -> None:
        """Keep a passage for a ``getMore`` that began in an epoch."""
        message, fields, permit = request.message, request.fields, client.permit
        frame = message.frame
        if (
            permit is None
            or reply is None
            or has_failed(reply)
            or not self._shard.components.parameters.passages.is_enabled
            or epoch != EPOCH.number
            or message.flags
            or frame[BODY_AT - 1]
            or not client.is_answered_verbatim
            or client.trace is not None
            or AUTOCOMMIT in fields
            or READ_CONCERN in fields
            or len(frame) > FRAME_BYTES_MAX
            or not is_get_more(frame)
            or self._table.find(frame, permit) is not None
            or not self._table.is_wanted(frame, permit)
        ):
            return
        common = CommonFields.of(frame, fields)
        passage = None if common is None else ShardGetMorePassage(frame, epoch, common)
        if passage is not None and passage.is_of(frame):
            self._outcomes[Outcome.LEARNED] += 1
            self._table.add(frame, permit, passage)
