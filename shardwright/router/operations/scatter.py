"""Sending one operation to shards: a given one, the primary shard of a database, the owning shards, or all shards.

The functions for DDL and catalog reads refresh the routing and retry when a shard refuses the versions.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import trio

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database, with_routing
from shardwright.router.placement.routing_info import CollectionRouting, DatabaseRouting
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.message import op_msg
from shardwright.wire.rawbson import append, encode_elements, without
from shardwright.wire.read_preference import PRIMARY, ReadPreference
from shardwright.wire.request import raw_elements
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

_READ_PREFERENCE: Final = b"$readPreference"


def forwarded(operation: Operation, elements: bytes, body: bytes | None = None) -> bytes:
    """Build the frame for a shard: the client's message with elements added to its body.

    It keeps the client's document sequences and request id, so that the shard's reply can be forwarded unchanged.

    Args:
        elements: the elements to add, for example versions.
        body: replaces the client's body.
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
    sources: tuple[str, ...] = (),
) -> ShardReply:
    """Send one request to one shard and return its reply. See `ShardSender.send` for the arguments.

    Raises:
        StaleRoutingError: the shard refused the versions.
        ShardedViewError: it cannot run a read of a view alone.
        JoinNeededError: a pipeline reads collections that are not on the shard.
    """
    operation.targeted = (shard_id,)
    reply = await operation.sender.send(
        shard_id, frame, preference=preference, may_repeat=may_repeat, as_router=as_router, sources=sources
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


async def send_to_primary_shard(
    operation: Operation,
    db: str,
    body: bytes | None = None,
    *,
    create_database: bool = False,
    may_repeat: bool = False,
) -> ShardReply:
    """Run a command on the primary shard of a database, with the database's version.

    Args:
        body: replaces the client's body.
        may_repeat: whether the command is idempotent.

    Raises:
        CommandError: NamespaceNotFound, there is no such database; or the shard's error.
    """

    privilege = b"" if body is None else raw_elements(operation.request, (b"mayBypassWriteBlocking",))

    async def attempt(database: DatabaseRouting) -> ShardReply:
        frame = forwarded(operation, database.element + privilege, body)
        reply = await send_to_one(operation, database.primary, frame, may_repeat=may_repeat)
        reply.raise_for_error()
        return reply

    return await with_database(operation, db, attempt, create=create_database)


async def send_to_owning_shards(
    operation: Operation,
    namespace: str,
    body: bytes | None = None,
    *,
    create_database: bool = False,
    preference: ReadPreference = PRIMARY,
    may_repeat: bool = False,
) -> tuple[CollectionRouting, Sequence[ShardReply]]:
    """Run a command on all shards that own a part of a collection (its primary shard if unsharded), with its versions.

    The replies are in the order of the shards' names and may be errors, except for stale-routing errors.

    Args:
        body: replaces the client's body.
        may_repeat: whether the command is idempotent.

    Raises:
        CommandError: NamespaceNotFound, there is no such database.
    """

    async def attempt(routing: CollectionRouting) -> tuple[CollectionRouting, Sequence[ShardReply]]:
        requests = {shard: forwarded(operation, routing.versions_for(shard), body) for shard in sorted(routing.shards)}
        replies = await scatter(operation, requests, preference=preference, may_repeat=may_repeat)
        for reply in replies:
            reply.raise_if_stale()
        return routing, replies

    return await with_routing(operation, namespace, attempt, create_database=create_database)


async def read_all_shards(
    operation: Operation, *, also: Sequence[str] = (), preference: ReadPreference | None = None
) -> Sequence[ShardReply]:
    """Send the client's command, which only reads, to all shards, without versions.

    Args:
        preference: replaces the client's read preference. The command states it, because a secondary would otherwise
            refuse the command.
    """
    shards = (*await operation.context.shards.all_ids(), *also)
    if preference is None:
        chosen, frame = operation.read_preference, forwarded(operation, b"")
    else:
        stated = encode_elements({_READ_PREFERENCE.decode(): {"mode": preference.mode}})
        body = append(without(operation.request.body, (_READ_PREFERENCE,)), stated)
        chosen, frame = preference, forwarded(operation, b"", body)
    return await scatter(operation, dict.fromkeys(shards, frame), preference=chosen, may_repeat=True)


async def connection_strings(operation: Operation, replies: Iterable[ShardReply]) -> dict[str, str]:
    """Return ``set/host:port,…`` by name of the present shards, which include all that replied and still exist."""
    shards = operation.context.shards
    if any(shards.get_known(reply.shard_id) is None for reply in replies):
        await shards.reload()
    return {shard.id: shard.connection_string for shard in shards.known()}
