"""Commands on the existing indexes of a collection."""

from shardwright.router.commands.command_registry import command
from shardwright.router.commands.cursor_argument import check_cursor
from shardwright.router.ddl.coordinated import coordinated_command
from shardwright.router.ddl.raw_replies import merge_raw
from shardwright.router.operations.cursor_opening import open_on_one_shard
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import on_buckets_if_sharded, with_routing
from shardwright.router.operations.routed_sending import (
    connection_strings,
    send_to_owning_shards,
    send_to_primary_shard,
)
from shardwright.router.operations.scatter import forwarded
from shardwright.router.placement.collection_routing import CollectionRouting
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.arguments import Arguments, Strictness
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.field_errors import missing_field, wrong_type
from shardwright.wire.rawbson import ARRAY, OBJECT, STRING
from shardwright.wire.request import Request


@command("dropIndexes", aliases=("deleteIndexes",), api_versions=("1",), supports_write_concern=True)
async def drop_indexes(operation: Operation) -> Reply:
    """Drops indexes on all shards that own a part of the collection."""
    request = operation.request
    Arguments.of(request, "dropIndexes").refuse_unknown({b"dropIndexes", b"deleteIndexes", b"index", b"collectionUUID"})
    Namespace(request.db, request.collection).check_valid()
    if request.db in ("config", "admin"):
        raise CommandError(
            ErrorCode.IllegalOperation, f"Cannot drop indexes in '{request.db}' database in sharded cluster"
        )
    # Raised here because the shard's errors would name its own command.
    index = request.fields.get(b"index")
    if index is None:
        raise missing_field("dropIndexes.index")
    if index[0] not in (STRING, ARRAY, OBJECT):
        raise wrong_type("dropIndexes.index", index[0], "string", "object")
    reply = await send_to_primary_shard(operation, request.db, coordinated_command(request, "_shardsvrDropIndexes"))
    return reply.for_client()


@command("listIndexes", reads=True, api_versions=("1",))
async def list_indexes(operation: Operation) -> Reply:
    """The indexes of a collection on the shard that owns its lowest chunk."""
    namespace = operation.namespace

    async def list_on_shard(operation: Operation) -> Reply:
        async def attempt(routing: CollectionRouting) -> bytes:
            shard = _shard_of_lowest_chunk(routing)
            frame = forwarded(operation, routing.versions_for(shard))
            return await open_on_one_shard(operation, shard, frame, preference=operation.read_preference)

        return await with_routing(operation, operation.namespace, attempt)

    try:
        return await on_buckets_if_sharded(operation, list_on_shard)
    except CommandError as error:
        if error.code != ErrorCode.NamespaceNotFound:
            raise
        _check_list_arguments(operation.request)
        raise CommandError(error.code, f"ns does not exist: {namespace}") from error


def _check_list_arguments(request: Request) -> None:
    """Refuse what a shard would refuse, for a collection that does not exist.

    Raises:
        CommandError: 40415, TypeMismatch, 51024.
    """
    arguments = Arguments.of(request)
    flags = (b"includeBuildUUIDs", b"includeIndexBuildInfo")
    arguments.refuse_unknown((b"listIndexes", b"cursor", *flags))
    for name in flags:
        arguments.boolean(name, strictness=Strictness.BOOL)
    check_cursor(arguments)


@command("setIndexCommitQuorum", supports_write_concern=True)
async def set_index_commit_quorum(operation: Operation) -> Reply:
    """Changes how many members must have built an index before it is committed."""
    arguments = Arguments.of(operation.request)
    arguments.strings(b"indexNames")
    arguments.required_value(b"commitQuorum")
    _, replies = await send_to_owning_shards(operation, operation.namespace)
    return merge_raw(replies, await connection_strings(operation, replies))


def _shard_of_lowest_chunk(routing: CollectionRouting) -> str:
    table = routing.table
    return routing.primary if table is None else table.shard_for_key(table.key_pattern.global_min_bytes())
