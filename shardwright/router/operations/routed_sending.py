"""Sending DDL, and reads of the catalog, to where they belong: a database's primary shard, owning shards, all shards.

Each function sends again when a shard says that the router's knowledge is out of date, with what it knows then.
"""

from collections.abc import Iterable, Sequence

from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_database, with_routing
from shardwright.router.operations.scatter import forwarded, scatter, send_to_one
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.placement.database_routing import DatabaseRouting
from shardwright.router.reads.raw_elements import raw_elements
from shardwright.router.replies.shard_reply import ShardReply
from shardwright.wire.read_preference import PRIMARY, ReadPreference


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
        operation: the client's command.
        db: the database.
        body: in place of the client's own.
        create_database: make the database if it does not exist.
        may_repeat: doing it twice is as doing it once.

    Raises:
        CommandError: NamespaceNotFound, there is no such database; what the shard answered.
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

    The replies, errors other than those about versions among them, are in the order of the shards' names.

    Args:
        operation: the client's command.
        namespace: the collection.
        body: in place of the client's own.
        create_database: make the database if it does not exist.
        preference: which member of each shard answers.
        may_repeat: doing it twice is as doing it once.

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
        operation: the client's command.
        also: others to send it to, after the shards.
        preference: in place of the client's read preference.

    Raises:
        CommandError: the list of shards could not be read.
    """
    shards = (*await operation.context.shards.all_ids(), *also)
    frame = forwarded(operation, b"")
    chosen = operation.read_preference if preference is None else preference
    return await scatter(operation, dict.fromkeys(shards, frame), preference=chosen, may_repeat=True)


async def connection_strings(operation: Operation, replies: Iterable[ShardReply]) -> dict[str, str]:
    """``set/host:port,…`` of shards by name, among them those that have replied and have not been removed since.

    Raises:
        CommandError: a shard is new, and the list of shards could not be read.
    """
    shards = operation.context.shards
    if any(shards.get_known(reply.shard_id) is None for reply in replies):
        await shards.reload()
    return {shard.id: shard.connection_string for shard in shards.known()}
