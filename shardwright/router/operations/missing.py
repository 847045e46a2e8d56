"""Reads of missing databases: MongoDB returns an empty result rather than an error."""

from collections.abc import Awaitable

from shardwright.router.operations.operation import Operation
from shardwright.router.replies.own_reply import Reply
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


async def unless_missing(operation: Operation, reading: Awaitable[Reply], nothing: Reply) -> Reply:
    """The result of a read, or ``nothing`` if the database of its collection does not exist.

    Raises:
        CommandError: the read failed in another way; InvalidNamespace, which no shard had the chance to report.
    """
    try:
        return await reading
    except CommandError as error:
        check_is_missing(operation, error)
    return nothing


def check_is_missing(operation: Operation, error: CommandError) -> None:
    """Return if a read failed because the database of its collection does not exist.

    Raises:
        CommandError: as `unless_missing`.
    """
    if error.code != ErrorCode.NamespaceNotFound or operation.request.db in operation.context.routing.databases:
        raise error
    Namespace(operation.request.db, operation.request.collection).check_readable()
