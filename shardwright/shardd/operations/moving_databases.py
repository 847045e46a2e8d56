"""What clients may not do to the unsharded collections of a database while these are copied to another shard.

Collections that an insert or an ``$out`` creates are copied too; explicit changes are refused, as in MongoDB.
"""

from typing import Final

from shardwright.shardd.context.shard_context import ShardContext
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.request import Request

REFUSED_DURING_MOVES: Final = frozenset({"create", "createIndexes"})


def check_not_moving(context: ShardContext, request: Request) -> None:
    """Refuse one of these commands while its database is being moved.

    Raises:
        CommandError: MovePrimaryInProgress.
    """
    database = context.databases.find(request.db)
    if database is None or not database.is_moving:
        return
    state = context.namespaces.find(f"{request.db}.{request.collection}")
    if state is None or state.table is None:
        raise CommandError(
            ErrorCode.MovePrimaryInProgress,
            f"movePrimary is in progress for namespace {request.db}.{request.collection}",
        )
