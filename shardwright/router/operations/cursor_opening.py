"""Opening reads on shards, and answering clients with their first batch.

The reply of one shard is forwarded; the documents of any other root stage are the first batch. In a snapshot, all
shards read at the same time.
"""

import math
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, TypeAlias

import trio
from bson.timestamp import Timestamp

from shardwright.router.cursors.open_cursor import Cursor, CursorOwner, batch_element
from shardwright.router.exec.remote import RemoteCursor
from shardwright.router.exec.shard import ShardStage
from shardwright.router.exec.stage import GetMore, MissingStage, Stage
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.reads.read_concern import snapshot_time
from shardwright.router.replies.cursor_reply import FIRST_BATCH, CursorReply, empty_cursor, is_whole_result
from shardwright.router.replies.reply_builder import Reply, raw_reply
from shardwright.router.replies.shard_reply import ShardReply, raise_worst
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

_OUT_OF_REACH: Final = frozenset({ErrorCode.FailedToSatisfyReadPreference, ErrorCode.MaxTimeMSExpired})
_CATEGORIES_OUT_OF_REACH: Final = (Category.NETWORK, Category.NOT_PRIMARY, Category.SHUTDOWN)


@may_run_in_reactor
async def open_on_one_shard(
    operation: Operation,
    shard_id: str,
    frame: bytes,
    *,
    preference: ReadPreference = PRIMARY,
    is_immortal: bool = False,
    may_repeat: bool = True,
) -> bytes:
    """Send a command that opens a cursor to one shard, and give its reply the router's cursor id.

    Args:
        is_immortal: whether the cursor has no idle timeout.
        may_repeat: whether to resend the command when a connection breaks, because it only reads.

    Raises:
        StaleRoutingError: the shard refused the versions.
    """
    reply = await send_to_one(operation, shard_id, frame, preference=preference, may_repeat=may_repeat)
    if reply.error is not None or is_whole_result(reply):
        return reply.for_client()
    return forward_opening(operation, ShardStage(operation.sender, reply), is_immortal=is_immortal)


def _opener_of(operation: Operation) -> CursorOwner:
    """Return the owner of a cursor that an operation opens; with access control, the owner includes the command."""
    owner = CursorOwner.of(operation.request, operation.user)
    if operation.context.access is None:
        return owner
    return replace(owner, admitted=operation.origin)


@dataclass(slots=True)
class OpenedRead:
    """A read whose cursors are open on shards, to be answered with `answer_cursor` or read by the router.

    Attributes:
        operation: the operation that opened it, in the form in which it runs.
        namespace: ``db.collection`` for the client's cursor.
        batch_size: the number of documents in the first batch, None for the default.
    """

    operation: Operation
    root: Stage
    namespace: str
    batch_size: int | None = None

    async def first_batch(self) -> list[bytes]:
        """Return the documents of the first batch, and close the read."""
        opening = GetMore(self.operation.request, self.operation.client, batch_size=self.batch_size)
        try:
            return await self.root.next_batch(opening)
        finally:
            self.close()

    def close(self) -> None:
        """Kill the cursors that have not been read to their end, in the background."""
        self.operation.context.cursors.close(self.root)


AggregateRunner: TypeAlias = Callable[[Operation, str], Awaitable[OpenedRead]]
"""Opens an aggregation regardless of the location of its data; takes the operation and the name of its cursor."""


@may_run_in_reactor
async def answer_cursor(read: OpenedRead, *, is_single_batch: bool = False, is_immortal: bool = False) -> Reply:
    """Reply to a command with the first batch of a read, and keep the cursor unless it is exhausted.

    Args:
        is_single_batch: whether to close the cursor after this batch.
        is_immortal: whether the cursor has no idle timeout.
    """
    operation, root = read.operation, read.root
    if isinstance(root, ShardStage):
        return forward_opening(operation, root)
    if isinstance(root, MissingStage):
        return empty_cursor(read.namespace)
    opening = GetMore(operation.request, operation.client, batch_size=read.batch_size)
    cursor_id = 0
    try:
        documents = await root.next_batch(opening)
        if not (is_single_batch or root.is_exhausted):
            cursor_id = register(operation, read.namespace, root, is_immortal=is_immortal)
        element = batch_element(root, FIRST_BATCH, documents, cursor_id, read.namespace)
        clock = operation.context.clock
        return raw_reply(operation.request.message.request_id, element, clock, root.operation_time)
    finally:
        if not cursor_id:
            operation.context.cursors.close(root)


def forward_opening(operation: Operation, stage: ShardStage, *, is_immortal: bool = False) -> bytes:
    """Return the opening reply of a shard to the client, and keep its cursor, if any."""
    remote = stage.remote
    if remote is None or remote.is_exhausted:
        return stage.first_reply(0)
    return stage.first_reply(register(operation, remote.namespace, stage, is_immortal=is_immortal))


def register(operation: Operation, namespace: str, root: Stage, *, is_immortal: bool = False) -> int:
    """Keep a cursor for the client of an operation; return its id."""
    return operation.context.cursors.open(
        Cursor(namespace, root, operation.context.clock),
        _opener_of(operation),
        command=operation.request.body,
        is_immortal=is_immortal,
        client=operation.client,
    )


@may_run_in_reactor
async def open_on_shards(
    operation: Operation,
    frames: Mapping[str, bytes],
    *,
    preference: ReadPreference = PRIMARY,
    allows_partial_results: bool = False,
    patience_seconds: float = math.inf,
) -> list[ShardReply]:
    """Send commands that open cursors to several shards at once; return their replies, which are all successful.

    If any cursor could not be opened, the others are killed, even if the client disconnects.

    Args:
        allows_partial_results: whether unreachable shards are left out of the result.
        patience_seconds: with partial results, time after which a shard without a reply counts as unreachable.

    Raises:
        StaleRoutingError: a shard refused the versions.
    """
    sender = operation.sender
    operation.targeted = tuple(frames)
    replies: dict[str, ShardReply] = {}

    is_complete = False
    try:
        if allows_partial_results:
            await in_own_task()
            with trio.move_on_after(patience_seconds):
                async with trio.open_nursery() as nursery:
                    for shard_id, frame in frames.items():
                        nursery.start_soon(sender.send_into, replies, shard_id, frame, preference)
        else:
            await sender.send_to_all(frames, replies, preference=preference)
        ordered = [replies.get(shard_id) or ShardReply.failed(shard_id, _out_of_patience()) for shard_id in frames]
        raise_worst(reply for reply in ordered if not (allows_partial_results and _is_out_of_reach(reply)))
        is_complete = True
        return [reply for reply in ordered if reply.error is None]
    finally:
        if not is_complete:
            kill_opened(operation, (reply for reply in replies.values() if reply.error is None))


def kill_opened(operation: Operation, replies: Iterable[ShardReply]) -> None:
    """Kill the cursors in successful replies, in the background."""
    sender = operation.sender
    operation.context.cursors.kill_remotes(
        RemoteCursor.opened(sender, reply, CursorReply.of(reply)) for reply in replies
    )


def _is_out_of_reach(reply: ShardReply) -> bool:
    """Whether the shard is unreachable, as opposed to refusing the command."""
    if reply.error is None:
        return False
    code = reply.error.code
    return code in _OUT_OF_REACH or any(has_category(code, category) for category in _CATEGORIES_OUT_OF_REACH)


def _out_of_patience() -> CommandError:
    return CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The time of a snapshot.

    Attributes:
        targeting: the time whose chunk owners are targeted; None outside snapshots, or for a single shard.
        reading: the time for the command to shards and for the reply to the client. None in a transaction, because the
            shards have the time since the transaction began there.
    """

    targeting: Timestamp | None = None
    reading: Timestamp | None = None


_NONE: Final = Snapshot()


def snapshot_of(operation: Operation, table: RoutingTable | None) -> Snapshot:
    """Return the snapshot in which an operation reads a collection.

    Args:
        table: of the collection, None if it is unsharded.
    """
    clock = operation.context.clock.time.cluster_time
    if operation.transaction is not None:
        time = operation.transaction.choose_time(clock)
        return _NONE if time is None or table is None else Snapshot(targeting=time)
    time = snapshot_time(operation.request, table, clock)
    return _NONE if time is None else Snapshot(time, time)
