"""Requests between the processes of a router.

Some commands must take effect in all of them. A statement of a transaction may arrive on any connection, but one
process has the session's transactions. A sibling's refusal is raised as CommandError.
"""

from collections.abc import Mapping
from typing import Any, Final
from zlib import crc32

from shardwright.daemon.users import UserName
from shardwright.router.context.router_context import RouterContext
from shardwright.wire.errors import BackendError
from shardwright.wire.rawbson import OBJECT, find
from shardwright.wire.request import Request
from shardwright.wire.transport.reactor import may_run_in_reactor

_FROM_SIBLING: Final = "$fromSibling"
"""Marks a forwarded command, which is not forwarded again. It may name the user that the command is for."""

_LSID = b"lsid"


def is_from_sibling(request: Request) -> bool:
    """Whether another process of this router has forwarded a command."""
    return _FROM_SIBLING.encode() in request.fields


def on_behalf_of(user: UserName) -> dict[str, Any]:
    """Return the field that names the acting user to a sibling, which otherwise sees only a cluster member.

    Under access control, clients cannot send it.
    """
    return {_FROM_SIBLING: user.to_document()}


def user_of_sibling(request: Request) -> UserName | None:
    """Return the user for whom a sibling has forwarded a command; None for a client's own command."""
    named = request.get(_FROM_SIBLING.encode())
    return UserName(named["user"], named["db"]) if isinstance(named, Mapping) else None


def without_mark(request: Request) -> Request:
    """Return the command as the sibling received it from the client."""
    return request.without((_FROM_SIBLING.encode(),))


async def tell_siblings(
    context: RouterContext, request: Request, command: Mapping[str, Any], user: UserName | None = None
) -> list[dict[str, Any]] | None:
    """Repeat a client's command in all other processes of this router.

    Returns:
        Their replies; None if one of them has forwarded the request, and so forwards it to the others itself.
    """
    if is_from_sibling(request):
        return None
    return await send_to_siblings(context, request.db, command, user)


async def send_to_siblings(
    context: RouterContext, db: str, command: Mapping[str, Any], user: UserName | None = None
) -> list[dict[str, Any]]:
    """Send a command to all other processes of this router; return their replies.

    A process that does not answer has crashed. Its replacement starts without the effects of earlier commands.
    """
    replies = []
    for index in sibling_indexes(context):
        try:
            replies.append(await send_to_sibling(context, index, db, command, user))
        except BackendError:
            continue
    return replies


def sibling_indexes(context: RouterContext) -> list[int]:
    """Return the indexes of the other processes of this router."""
    options = context.options
    return [index for index in range(len(options.worker_sockets)) if index != options.worker_index]


async def send_to_sibling(
    context: RouterContext, index: int, db: str, command: Mapping[str, Any], user: UserName | None = None
) -> dict[str, Any]:
    """Send a command to one other process of this router; return its reply.

    Raises:
        BackendError: it has crashed.
    """
    mark = {_FROM_SIBLING: True} if user is None else on_behalf_of(user)
    return await context.pools[context.options.worker_sockets[index]].command(db, {**command, **mark})


def owner_of(session: bytes, processes: int) -> int:
    """Return the index of the process that has a session's transactions.

    Args:
        session: the raw ``lsid.id``.
    """
    return crc32(session) % processes


@may_run_in_reactor
async def relayed_to_owner(context: RouterContext, request: Request) -> bytes | None:
    """Forward a request to the process with its session's transactions and return the reply; None if that is this one.

    Raises:
        ConnectionResetError: that process has ended, and its transactions with it. The client's connection must close.
    """
    lsid = request.fields.get(_LSID)
    session = None if lsid is None or lsid[0] != OBJECT else find(request.body, b"id", lsid[2])
    if session is None:
        return None  # this process refuses it
    sockets = context.options.worker_sockets
    owner = owner_of(request.body[session[2] : session[3]], len(sockets))
    if owner == context.options.worker_index:
        return None
    try:
        return await context.pools[sockets[owner]].exchange(request.message.frame)
    except BackendError as error:
        raise ConnectionResetError(str(error)) from error
