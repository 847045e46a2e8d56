"""One operation on several shards at once."""

from collections.abc import Mapping

import trio

from shardwright.router.operations.operation import Operation
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor


def forwarded(operation: Operation, elements: bytes, body: bytes | None = None) -> bytes:
    """The frame of a request to a shard: the client's message with elements added to its body.

    It keeps the client's request id, so that the shard's reply can be forwarded as it is, and the client's document
    sequences.

    Args:
        operation: whose request it is.
        elements: the elements to add, for example versions.
        body: in place of the client's own body.
    """
    message = operation.request.message
    return op_msg(
        append(message.body if body is None else body, elements),
        request_id=message.request_id,
        sections=b"".join([sequence.section() for sequence in message.sequences]) if message.sequences else b"",
    )


@may_run_in_reactor
async def send_to_one(
    operation: Operation,
    shard_id: str,
    frame: bytes,
    *,
    preference: ReadPreference = PRIMARY,
    may_repeat: bool = False,
    as_router: bool = False,
) -> ShardReply:
    """Send one request to one shard and return its reply if it is not about a stale version, or a view.

    Raises:
        StaleRoutingError: the shard refused the versions.
        ShardedViewError: it cannot run a read of a view alone.
        JoinNeededError: a pipeline reads collections that the shard does not have.
        CommandError: the shard could not be reached.
    """
    operation.targeted = (shard_id,)
    reply = await operation.sender.send(
        shard_id, frame, preference=preference, may_repeat=may_repeat, as_router=as_router
    )
    if reply.error is not None:
        reply.raise_if_stale()
        reply.raise_if_view()
        reply.raise_if_join_needed()
    return reply


@may_run_in_reactor
async def scatter(
    operation: Operation,
    requests: Mapping[str, bytes],
    *,
    preference: ReadPreference = PRIMARY,
    may_repeat: bool = False,
) -> list[ShardReply]:
    """Send requests to several shards at once and wait for all of them.

    The result has an entry for every shard, in the order of ``requests``, with an error where there was no reply, so
    that no failure hides another.
    """
    await in_own_task()
    operation.targeted = tuple(requests)
    replies: dict[str, ShardReply] = {}
    async with trio.open_nursery() as nursery:
        for shard_id, frame in requests.items():
            nursery.start_soon(operation.sender.send_into, replies, shard_id, frame, preference, may_repeat)
    return [replies[shard_id] for shard_id in requests]
