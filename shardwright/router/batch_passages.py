"""The router's passages of ``getMore``: batches of cursors that are open on one shard.

A passage checks the cursor each time: its owner, whether it is being read, and whether it has been killed. It changes
only the cursor's id, because the router and the shard have different ids for a cursor.
"""

from time import perf_counter, time
from typing import Final, TypeAlias

from shardwright.daemon.passages import DaemonPassages
from shardwright.router.context.router_context import RouterContext
from shardwright.router.exec.shard import ShardStage
from shardwright.router.generic_arguments import READ_CONCERN
from shardwright.router.operations.begun_operation import BegunBatch
from shardwright.router.operations.operation import ContinuedOn, Operation
from shardwright.router.passage import RouterGetMorePassage, RouterPassage
from shardwright.router.replies.reply_builder import cluster_time_of_usual, signed
from shardwright.sharding.clock import with_cluster_time
from shardwright.wire.cursor_batch import documents_returned, next_id_at
from shardwright.wire.message import BODY_AT, op_msg
from shardwright.wire.passages import CURSOR_ID_AT, CURSOR_ID_END, EPOCH, OUTCOMES, Outcome
from shardwright.wire.transport.client_connection import ClientConnection

AnyPassage: TypeAlias = RouterPassage | RouterGetMorePassage

_GET_MORE: Final = "getMore"


class RouterBatchPassages(DaemonPassages[AnyPassage]):
    """The passages of ``getMore``, and the table of all passages of a router."""

    def __init__(self, context: RouterContext) -> None:
        super().__init__(
            context.metrics.labelled_counter(
                "passages", "Requests by whether a passage served them", "outcome", OUTCOMES
            )
        )
        self._context = context
        self._observe_on = context.metrics.operations.observe_on

    def _begin_batch(self, passage: RouterGetMorePassage, client: ClientConnection, frame: bytes) -> BegunBatch | None:
        """Begin a ``getMore``."""
        started = perf_counter()
        context, common = self._context, passage.common
        entry = context.cursors.find(int.from_bytes(frame[CURSOR_ID_AT:CURSOR_ID_END], "little", signed=True))
        if entry is None or client.is_disconnected or not passage.may_read(frame, entry):
            return None
        root = entry.cursor.root
        remote = root.plain_remote if isinstance(root, ShardStage) else None
        request = None if remote is None else passage.request_for(frame, remote.id, context.clock)
        if remote is None or request is None or context.shards.get_known(remote.shard_id) is None:
            return None
        if common.lsid is not None and not context.sessions.use_again(frame[slice(*common.lsid)], time()):
            return None
        pool = context.pools[remote.address]
        connection = pool.lend_quiet()
        if connection is None:
            return None
        client.is_interruptible = True
        context.cursors.begin_in_passage(entry, client)
        client.state = begun = BegunBatch(
            context, client, frame, started, entry, remote, pool, connection, request, passage
        )
        return begun

    def _finish_batch(self, client: ClientConnection, begun: BegunBatch, reply: bytes) -> bytes | None:
        """Finish a ``getMore``."""
        passage, context, entry = begun.passage, self._context, begun.entry
        assert isinstance(passage, RouterGetMorePassage)
        cluster_time, at = cluster_time_of_usual(reply), next_id_at(reply)
        seconds = perf_counter() - begun.started
        if not cluster_time or not at or entry.is_killed or seconds * 1000 >= context.slow_operations.considered_ms:
            return None
        context.clock.observe_cluster_time(cluster_time)
        begun.remote.id = int.from_bytes(reply[at : at + 8], "little", signed=True)
        answer = reply
        if begun.remote.id:
            answer = b"".join((reply[:at], begun.request_frame[CURSOR_ID_AT:CURSOR_ID_END], reply[at + 8 :]))
        client.state = None
        bucket = self._observe_on(begun.shard_id, _GET_MORE, seconds, len(begun.frame), len(reply))
        self._count_shape(passage, bucket, seconds, answer)
        self._outcomes[Outcome.TAKEN] += 1
        begun.pool.give_back(begun.connection)
        context.cursors.end_in_passage(entry)
        return signed(answer, context.signer)

    def _count_shape(self, passage: AnyPassage, bucket: int, seconds: float, answer: bytes, shards: int = 1) -> None:
        """Count a successful operation by its shape.

        Args:
            bucket: the number of the bucket that its duration falls into.
            answer: the reply to the client.
        """
        shape = passage.shape_counts
        if shape is None:
            return
        if not shape.is_kept:
            shape = passage.shape_counts = self._context.query_shapes.kept_again(shape)
        shape.buckets[bucket] += 1
        shape.seconds += seconds
        shape.reply_bytes += len(answer)
        shape.documents += documents_returned(answer)
        if shards > 1:
            shape.scattered += 1
            shape.further_shards += shards - 1

    def _learn_batches(self, operation: Operation, continued_on: ContinuedOn) -> None:
        """Keep a passage for a ``getMore``; without access control, which checks its cursor's command each time."""
        context, request = self._context, operation.origin
        frame, message, permit = request.message.frame, request.message, operation.client.permit
        if (
            permit is None
            or operation.transaction is not None
            or context.access is not None
            or operation.epoch != EPOCH.number
            or message.flags
            or frame[BODY_AT - 1]
            or READ_CONCERN in request.fields
            or self._table.find(frame, permit) is not None
            or not self._table.is_wanted(frame, permit)
        ):
            return
        counts = context.query_shapes.of(request)
        passage = RouterGetMorePassage.of(request, operation.epoch, continued_on.namespace, counts)
        if passage is None or not passage.is_of(frame):
            return
        body = operation.request.body
        if at := passage.common.time_at:  # the clock may have advanced since the request was sent
            now = context.clock.packed_cluster_time
            frame = b"".join((frame[:at], now, frame[at + 8 :]))
            body = b"".join((body[: at - BODY_AT], now, body[at + 8 - BODY_AT :]))
        cursor_id = int.from_bytes(frame[CURSOR_ID_AT:CURSOR_ID_END], "little", signed=True)
        ordinary = op_msg(body, request_id=message.request_id)
        if passage.request_for(frame, cursor_id, context.clock) == with_cluster_time(ordinary, context.clock):
            self._outcomes[Outcome.LEARNED] += 1
            self._table.add(request.message.frame, permit, passage)
