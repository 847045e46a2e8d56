"""``getMore``: the next batch of a cursor."""

from contextlib import nullcontext

from shardwright.daemon.user_names import UserName
from shardwright.router.change_streams.errors import labelled
from shardwright.router.change_streams.stream_cursor import ChangeStreamCursor
from shardwright.router.commands.command_registry import command
from shardwright.router.context.fail_point_names import FAIL_GET_MORE
from shardwright.router.cursors.get_more import GetMore
from shardwright.router.cursors.session import CursorOwner
from shardwright.router.operations.operation import Operation
from shardwright.router.processes.siblings import on_behalf_of, user_of_sibling, without_mark
from shardwright.router.processes.workers import forward_to_holder, holder_socket
from shardwright.router.reads.get_more_arguments import GetMoreArguments
from shardwright.router.replies.own_reply import Reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import append, encode_elements


@command("getMore", reads=True, deadline_from_max_time=False, api_versions=("1",))
async def get_more(operation: Operation) -> Reply:
    """Returns the next batch of a cursor."""
    user = user_of_sibling(operation.request)
    request = operation.request if user is None else without_mark(operation.request)
    arguments = GetMoreArguments.parse(request)
    forwarded = await forward_to_holder(
        operation.context, arguments.cursor_id, _frame_for_holder(operation, arguments.cursor_id)
    )
    if forwarded is not None:
        return forwarded
    cursors = operation.context.cursors
    owner = CursorOwner.of(request, operation.user if user is None else user.digest)
    await _check_privileges(operation, arguments.cursor_id, owner, user)
    with cursors.checked_out(arguments.cursor_id, arguments.namespace, owner, operation.client) as entry:
        operation.targeted = tuple(remote.shard_id for remote in entry.cursor.remotes if not remote.is_exhausted)
        get_more = GetMore(request, operation.client, entry.id, arguments.batch_size, arguments.max_time_ms)
        with labelled() if isinstance(entry.cursor, ChangeStreamCursor) else nullcontext():
            operation.context.fail_points.fail_if_on(FAIL_GET_MORE)
            return await entry.cursor.next_batch(get_more)
    raise AssertionError("a checked out cursor answers or raises")


def _frame_for_holder(operation: Operation, cursor_id: int) -> bytes:
    """The request for the process that has the cursor, with the user, whom that process does not know."""
    request, user = operation.request, operation.acting_user
    if user is None or holder_socket(operation.context.options, cursor_id) is None:
        return request.message.frame
    return request.with_body(append(request.body, encode_elements(on_behalf_of(user)))).message.frame


async def _check_privileges(
    operation: Operation, cursor_id: int, owner: CursorOwner, sibling_user: UserName | None
) -> None:
    """Refuse to go on with what the user of a cursor may no longer begin.

    Raises:
        CommandError: Unauthorized.
    """
    access, entry = operation.context.access, operation.context.cursors.find(cursor_id)
    if access is None or entry is None or entry.owner != owner or entry.owner.admitted is None:
        return
    admitted = entry.owner.admitted
    if sibling_user is None:
        may_go_on = access.may_still_run(operation.client, admitted)
    else:
        may_go_on = await access.may_be_run_for(sibling_user, admitted)
    if not may_go_on:
        raise CommandError(ErrorCode.Unauthorized, f"not authorized for getMore with cursor id {cursor_id}")
