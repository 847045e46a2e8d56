"""``getMore``: the next batch of a cursor."""

from contextlib import nullcontext

from shardwright.router.change_streams.errors import labelled
from shardwright.router.change_streams.stream_cursor import ChangeStreamCursor
from shardwright.router.commands.command_registry import command
from shardwright.router.context.fail_point_names import FAIL_GET_MORE
from shardwright.router.cursors.get_more import GetMore
from shardwright.router.cursors.session import FOR_USER, CursorOwner
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.workers import forward_to_holder
from shardwright.router.reads.get_more_arguments import GetMoreArguments
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


@command("getMore", reads=True, deadline_from_max_time=False, api_versions=("1",))
async def get_more(operation: Operation) -> Reply:
    """Returns the next batch of a cursor."""
    request = operation.request
    arguments = GetMoreArguments.parse(request)
    forwarded = await forward_to_holder(operation.context, arguments.cursor_id, request, operation.user)
    if forwarded is not None:
        return forwarded
    cursors, owner = operation.context.cursors, CursorOwner.of(request, operation.user)
    _check_privileges(operation, arguments.cursor_id, owner)
    with cursors.checked_out(arguments.cursor_id, arguments.namespace, owner, operation.client) as entry:
        operation.targeted = tuple(remote.shard_id for remote in entry.cursor.remotes if not remote.is_exhausted)
        get_more = GetMore(
            request.without((FOR_USER,)), operation.client, entry.id, arguments.batch_size, arguments.max_time_ms
        )
        with labelled() if isinstance(entry.cursor, ChangeStreamCursor) else nullcontext():
            operation.context.fail_points.fail_if_on(FAIL_GET_MORE)
            return await entry.cursor.next_batch(get_more)
    raise AssertionError("a checked out cursor answers or raises")


def _check_privileges(operation: Operation, cursor_id: int, owner: CursorOwner) -> None:
    """Refuse to go on with what the user of a cursor may no longer begin.

    Raises:
        CommandError: Unauthorized.
    """
    access, entry = operation.context.access, operation.context.cursors.find(cursor_id)
    if access is None or entry is None or entry.owner != owner or entry.owner.admitted is None:
        return
    if not access.may_still_run(operation.client, entry.owner.admitted):
        raise CommandError(ErrorCode.Unauthorized, f"not authorized for getMore with cursor id {cursor_id}")
