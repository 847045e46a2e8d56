"""``listDatabases``."""

from collections.abc import Callable
from functools import partial

from shardwright.daemon.privileges import CLUSTER
from shardwright.router.access.needs import Need
from shardwright.router.access.visible import may_see_database
from shardwright.router.commands.command_registry import command
from shardwright.router.ddl.database_list import merge_database_lists
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.routed_sending import read_all_shards
from shardwright.router.replies.own_reply import Reply
from shardwright.router.replies.worst_error import raise_worst
from shardwright.sharding.versions import CONFIG_SHARD
from shardwright.wire.arguments import Arguments
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.read_preference import PRIMARY_PREFERRED

_SEES_ALL = Need("listDatabases", CLUSTER)


@command("listDatabases", aliases=("listdatabases",), admin_only=True, reads=True, api_versions=("1",))
async def list_databases(operation: Operation) -> Reply:
    """The databases of the cluster with their sizes. Each shard applies the client's filter to its own entries."""
    is_visible = _visible(operation)
    replies = await read_all_shards(operation, also=(CONFIG_SHARD,), preference=PRIMARY_PREFERRED)
    raise_worst(replies)
    return merge_database_lists(
        {reply.shard_id: reply.get(b"databases") for reply in replies},
        names_only=Arguments.of(operation.request).boolean(b"nameOnly"),
        is_visible=is_visible,
    )


def _visible(operation: Operation) -> Callable[[str], bool]:
    """Which databases the client may see.

    Raises:
        CommandError: Unauthorized, it asks for all and may see some.
    """
    access = operation.context.access
    if access is None:
        return lambda _: True
    privileges = access.privileges_of(operation.client)
    sees_all = _SEES_ALL.is_met(privileges)
    arguments = Arguments.of(operation.request)
    is_filtered = arguments.boolean(b"authorizedDatabases", default=not sees_all)
    if not is_filtered and not sees_all:
        raise CommandError(ErrorCode.Unauthorized, "Insufficient permissions to list all databases")
    return partial(may_see_database, privileges) if is_filtered else lambda _: True
