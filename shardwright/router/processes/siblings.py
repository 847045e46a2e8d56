"""Commands that have to take effect in all processes of a router."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.daemon.user_names import UserName
from shardwright.router.context.router_context import RouterContext
from shardwright.wire.errors import BackendError
from shardwright.wire.request import Request

_FROM_SIBLING: Final = "$fromSibling"
"""Marks a command that was sent on, which is not sent on again; it may name the user for whom."""


def is_from_sibling(request: Request) -> bool:
    """Whether another process of this router has sent a command on."""
    return _FROM_SIBLING.encode() in request.fields


def on_behalf_of(user: UserName) -> dict[str, Any]:
    """The field that tells a sibling for which user it acts; all that it sees is this process, a part of the cluster.

    Clients cannot send it under access control.
    """
    return {_FROM_SIBLING: user.to_document()}


def user_of_sibling(request: Request) -> UserName | None:
    """The user for whom a sibling has sent a command on; None if a client has sent it to this process."""
    named = request.get(_FROM_SIBLING.encode())
    return UserName(named["user"], named["db"]) if isinstance(named, Mapping) else None


def without_mark(request: Request) -> Request:
    """The command as the client has sent it to the sibling."""
    return request.without((_FROM_SIBLING.encode(),))


async def tell_siblings(
    context: RouterContext, request: Request, command: Mapping[str, Any], user: UserName | None = None
) -> list[dict[str, Any]] | None:
    """Have all other processes of this router do what a client has asked this one to do.

    Args:
        context: this process's.
        request: what is being done here.
        command: what the others have to do.
        user: for whom, if that matters.

    Returns:
        Their replies; None if one of them has sent the request, and so sends it to the others itself.

    Raises:
        CommandError: one of them refused the command.
    """
    if is_from_sibling(request):
        return None
    return await send_to_siblings(context, request.db, command, user)


async def send_to_siblings(
    context: RouterContext, db: str, command: Mapping[str, Any], user: UserName | None = None
) -> list[dict[str, Any]]:
    """Send a command to all other processes of this router; returns their replies.

    A process that does not answer has crashed. The one that replaces it begins without what commands have changed.

    Args:
        context: this process's.
        db: the database of the command.
        command: the command.
        user: for whom it is, if that matters.

    Raises:
        CommandError: one of them refused it.
    """
    replies = []
    for index in sibling_indexes(context):
        try:
            replies.append(await send_to_sibling(context, index, db, command, user))
        except BackendError:
            continue
    return replies


def sibling_indexes(context: RouterContext) -> list[int]:
    """The indexes of the other processes of this router."""
    options = context.options
    return [index for index in range(len(options.worker_sockets)) if index != options.worker_index]


async def send_to_sibling(
    context: RouterContext, index: int, db: str, command: Mapping[str, Any], user: UserName | None = None
) -> dict[str, Any]:
    """Send a command to one other process of this router; returns its reply.

    Raises:
        CommandError: it refused the command.
        BackendError: it has crashed.
    """
    mark = {_FROM_SIBLING: True} if user is None else on_behalf_of(user)
    return await context.pools[context.options.worker_sockets[index]].command(db, {**command, **mark})
