"""The process of a router that has a session's transactions, as any connection may carry any of their statements."""

from zlib import crc32

from shardwright.router.context.router_context import RouterContext
from shardwright.wire.errors import BackendError
from shardwright.wire.rawbson import OBJECT, find
from shardwright.wire.request import Request
from shardwright.wire.transport.request_loop import may_run_in_reactor

_LSID = b"lsid"


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
