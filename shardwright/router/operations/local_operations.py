"""The operations of this router process: how ``$currentOp`` shows them, and how ``killOp`` interrupts them.

An operation is found through its connection. It gets a number when it is shown for the first time, so that operations
that nobody looks at cost nothing.
"""

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import count
from time import perf_counter
from typing import Any, Final

import trio
from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

from shardwright.daemon.user_names import UserName
from shardwright.router.context.router_context import RouterContext
from shardwright.router.cursors.open_cursor import OpenCursor
from shardwright.router.cursors.session import NO_USER
from shardwright.router.operations.begun_operation import running_operation
from shardwright.router.operations.current_op_arguments import CurrentOpArguments
from shardwright.router.operations.fitting_operations import SHOWN_CHARACTERS_MAX, beginning
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.request_namespace import request_namespace
from shardwright.router.operations.shown_transactions import idle_sessions, shown_transaction
from shardwright.wire.command_secrets import shown_body
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import decode_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.server import LOCAL_PEER

KINDS: Final = dict(find="query", getMore="getmore", insert="insert", update="update", delete="remove")
"""The field ``op`` by command; of other commands it is ``command``."""

_numbers = count(1)


def local_operations(
    context: RouterContext, wanted: CurrentOpArguments, owner: UserName | None
) -> list[dict[str, Any]]:
    """What ``$currentOp`` shows of this process.

    Args:
        context: the router's.
        wanted: what is to be shown.
        owner: the user whose connections, cursors and sessions are meant; None for everybody's.
    """
    digest = None if owner is None else owner.digest
    shown = [
        _idle_connection(context, client) if running is None else _operation(context, client, running, wanted, digest)
        for client in _clients(context)
        if ((running := running_operation(client)) is not None or wanted.idle_connections)
        and (owner is None or user_of(client) == owner)
    ]
    if wanted.idle_cursors:
        cursors = (each for each in context.cursors.open_cursors if _is_of(each, digest))
        shown += [_idle_cursor(context, each, wanted) for each in cursors if not each.is_checked_out]
    if wanted.idle_sessions:
        shown += idle_sessions(context.transactions, context.options.address, digest)
    return shown


def user_of(client: ClientConnection) -> UserName | None:
    """Who has logged in on a connection."""
    user: UserName | None = None if client.login is None else client.login.user
    return user


def interrupt_operations(context: RouterContext, is_meant: Callable[[Operation], bool]) -> list[Operation]:
    """Interrupt operations of this process; returns them.

    The connections on which they wait for shards are closed, which ends their reads there.

    Args:
        context: the router's.
        is_meant: whether an operation is to be interrupted.
    """
    found: list[ClientConnection] = [
        client
        for client in _clients(context)
        if (running := running_operation(client)) is not None and is_meant(running)
    ]
    operations = [running for client in found if (running := running_operation(client)) is not None]
    for client in found:
        client.interrupt_operation(CommandError(ErrorCode.Interrupted, "operation was interrupted"))
    return operations


def _clients(context: RouterContext) -> Iterator[ClientConnection]:
    """The connections of clients, without those of the router's other processes."""
    return (client for client in context.clients.connections if client.peer != LOCAL_PEER)


def _is_of(entry: OpenCursor, user: bytes | None) -> bool:
    """Whether a cursor belongs to the user with a digest; to whom does not matter if that is None."""
    return user is None or entry.owner.user == user


def _operation(
    context: RouterContext,
    client: ClientConnection,
    operation: Operation,
    wanted: CurrentOpArguments,
    owner: bytes | None,
) -> dict[str, Any]:
    request = operation.request
    if operation.opid is None:
        operation.opid = _new_number(context)
    microseconds = int((perf_counter() - operation.started) * 1_000_000)
    shown = {
        **_connection(context, client, is_active=True),
        "threaded": True,
        "opid": operation.opid,
        **_session(request.raw_object(b"lsid")),
        **({} if operation.transaction is None else {"transaction": shown_transaction(operation.transaction)}),
        "secs_running": Int64(microseconds // 1_000_000),
        "microsecs_running": Int64(microseconds),
        "op": KINDS.get(request.name, "command"),
        "ns": namespace_shown(request),
        "command": _command(shown_body(request), wanted),
        "numYields": 0,
    }
    entry = context.cursors.find(request.get(b"getMore")) if request.name == "getMore" else None
    return (
        shown
        if entry is None or not _is_of(entry, owner)  # a getMore may name any cursor
        else {**shown, "cursor": {**_cursor(entry, wanted), "operationUsingCursorId": shown["opid"]}}
    )


def _new_number(context: RouterContext) -> int:
    """A number that no other process of this router uses."""
    processes = max(1, len(context.options.worker_sockets))
    return next(_numbers) * processes + context.options.worker_index


def _idle_connection(context: RouterContext, client: ClientConnection) -> dict[str, Any]:
    return _connection(context, client, is_active=False)


def _connection(context: RouterContext, client: ClientConnection, *, is_active: bool) -> dict[str, Any]:
    metadata = client.metadata or {}
    name = metadata.get("application", {}).get("name")
    user = user_of(client)
    return {
        "type": "op",
        "host": context.options.address,
        "desc": f"conn{client.id}",
        "connectionId": client.id,
        "client": client.peer,
        **({"appName": name} if name else {}),
        **({"clientMetadata": metadata} if metadata else {}),
        "active": is_active,
        "currentOpTime": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **({} if user is None else {"effectiveUsers": [user.to_document()]}),
    }


def namespace_shown(request: Request) -> str:
    """The namespace of a request as MongoDB shows it, with a collection in any case."""
    namespace = request_namespace(request)
    if "." in namespace:
        return namespace
    return f"{request.db}.$cmd.aggregate" if request.name == "aggregate" else f"{request.db}.$cmd"


def _session(lsid: bytes | None) -> dict[str, Any]:
    return {} if lsid is None else {"lsid": {"id": None, "uid": NO_USER, **decode_document(lsid)}}


def _command(body: bytes, wanted: CurrentOpArguments) -> dict[str, Any]:
    if not wanted.truncate_ops or len(body) <= SHOWN_CHARACTERS_MAX:
        return decode_document(body)
    comment = decode_document(body).get("comment")
    return {"$truncated": beginning(body), **({} if comment is None else {"comment": comment})}


def _idle_cursor(context: RouterContext, entry: OpenCursor, wanted: CurrentOpArguments) -> dict[str, Any]:
    session = entry.owner.session
    user = entry.owner.user or NO_USER
    lsid = {} if session is None else {"lsid": {"id": Binary(session, UUID_SUBTYPE), "uid": user}}
    return {
        "type": "idleCursor",
        "host": context.options.address,
        "ns": entry.cursor.namespace,
        **lsid,
        "cursor": _cursor(entry, wanted),
    }


def _cursor(entry: OpenCursor, wanted: CurrentOpArguments) -> dict[str, Any]:
    last_access = datetime.now(UTC) - timedelta(seconds=trio.current_time() - entry.last_used)
    command = decode_document(entry.command)
    return {
        "cursorId": Int64(entry.id),
        "createdDate": entry.created,
        "lastAccessDate": last_access,
        "nBatchesReturned": Int64(entry.batches),
        "noCursorTimeout": entry.is_immortal,
        "tailable": bool(command.get("tailable")),
        "awaitData": bool(command.get("awaitData")),
        "originatingCommand": _command(entry.command, wanted),
    }
