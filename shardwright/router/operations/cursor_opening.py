"""Opening cursors: on one shard, whose reply is forwarded, or on several, whose results are merged.

In a snapshot, all shards read at the same time.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

import trio
from bson.timestamp import Timestamp

from shardwright.router.cursors.cursor import GetMore, OpeningCursor
from shardwright.router.cursors.open_cursor import CursorOwner
from shardwright.router.cursors.remote import RemoteCursor
from shardwright.router.cursors.single_shard import SingleShardCursor
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.scatter import send_to_one
from shardwright.router.reads.read_concern import snapshot_time
from shardwright.router.replies.cursor_reply import CursorReply, is_whole_result
from shardwright.router.replies.shard_reply import ShardReply, raise_worst
from shardwright.sharding.routing_table import RoutingTable
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

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
    return reply.for_client() if reply.error is not None else adopt(operation, reply, is_immortal=is_immortal)


def opener_of(operation: Operation) -> CursorOwner:
    """Return the owner of a cursor that an operation opens; with access control, the owner includes the command."""
    owner = CursorOwner.of(operation.request, operation.user)
    if operation.context.access is None:
        return owner
    return replace(owner, admitted=operation.origin)


def adopt(
    operation: Operation, reply: ShardReply, *, is_immortal: bool = False, has_api_parameters: bool = True
) -> bytes:
    """Adopt the cursor that one shard has opened; return the frame for the client.

    Args:
        is_immortal: whether the cursor has no idle timeout.
        has_api_parameters: whether it was opened with the client's API parameters, if any.

    Raises:
        RemoteProtocolError: the reply has no cursor.
    """
    if is_whole_result(reply):
        return reply.for_client()
    cursor = CursorReply.of(reply)
    if not cursor.cursor_id:
        return cursor.frame
    remote = RemoteCursor.opened(operation.sender, reply, cursor)
    opened = SingleShardCursor(remote, has_api_parameters=has_api_parameters)
    cursor_id = operation.context.cursors.open(
        opened,
        opener_of(operation),
        command=operation.request.body,
        is_immortal=is_immortal,
        client=operation.client,
    )
    return cursor.with_cursor_id(cursor_id)


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


@may_run_in_reactor
async def answer_first_batch(
    operation: Operation,
    cursor: OpeningCursor,
    batch_size: int | None,
    *,
    is_single_batch: bool = False,
    is_immortal: bool = False,
) -> bytes:
    """Reply to a command with the first batch of a router's cursor, and keep the cursor unless it is exhausted.

    Args:
        batch_size: the number of documents, None for the default.
        is_single_batch: whether to close the cursor after this batch.
        is_immortal: whether the cursor has no idle timeout.
    """
    cursors = operation.context.cursors
    opening = GetMore(operation.request, operation.client, batch_size=batch_size)
    cursor_id = 0
    try:
        documents = await cursor.first_batch(opening)
        if not (is_single_batch or cursor.is_exhausted):
            owner = opener_of(operation)
            command = operation.request.body
            cursor_id = cursors.open(cursor, owner, command=command, is_immortal=is_immortal, client=operation.client)
        return cursor.first_reply(opening, documents, cursor_id)
    finally:
        if not cursor_id:
            cursors.kill_remotes(cursor.remotes)


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
