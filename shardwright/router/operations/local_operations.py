"""The operations of this router process: their form in ``$currentOp``, and their interruption by ``killOp``.

An operation is found through its connection. It gets an opid when it is first shown, so operations that are never shown
cost nothing. Open transactions are shown too. An operation that does not fit into one document is truncated.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from time import perf_counter
from typing import Any, Final

import trio
from bson.binary import UUID_SUBTYPE, Binary
from bson.int64 import Int64

from shardwright.daemon.command_table import namespace_of
from shardwright.daemon.users import UserName
from shardwright.router.context.router_context import RouterContext
from shardwright.router.cursors.open_cursor import NO_USER, OpenCursor
from shardwright.router.operations.begun_operation import running_operation
from shardwright.router.operations.operation import Operation
from shardwright.router.transactions.router_transaction import Participant, Phase, RouterTransaction, iso_text
from shardwright.router.transactions.transaction_table import RouterSession, TransactionTable
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import decode_document, encode_document, type_name_of
from shardwright.wire.request import Request, shown_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.server import LOCAL_PEER

CURRENT_OP: Final = "$currentOp"

_OPTIONS: Final = frozenset(
    {"allUsers", "backtrace", "idleConnections", "idleCursors", "idleSessions", "localOps", "truncateOps"}
)


@dataclass(frozen=True, slots=True)
class CurrentOpArguments:
    """The selection of operations of one process.

    Attributes:
        idle_connections: include connections without an operation.
        idle_cursors: include open cursors that are not being read.
        truncate_ops: show only the beginning of long commands.
        idle_sessions: include open transactions without a running command.
        all_users: under access control, include other users' operations.
    """

    idle_connections: bool = False
    idle_cursors: bool = False
    truncate_ops: bool = False
    idle_sessions: bool = True
    all_users: bool = False

    @classmethod
    def parse(cls, specification: object) -> "CurrentOpArguments":
        """Parse the specification of the stage."""
        if not isinstance(specification, Mapping):
            raise CommandError(
                ErrorCode.TypeMismatch,
                f"$currentOp options must be specified in an object, but found: {type_name_of(specification)}",
            )
        for name, value in specification.items():
            if name not in _OPTIONS:
                raise CommandError(ErrorCode.FailedToParse, f"Unrecognized option '{name}' in $currentOp stage.")
            if not isinstance(value, bool):
                raise CommandError(
                    ErrorCode.TypeMismatch,
                    f"The '{name}' parameter of the $currentOp stage must be a boolean value, "
                    f"but found: {type_name_of(value)}",
                )
        return cls(
            bool(specification.get("idleConnections")),
            bool(specification.get("idleCursors")),
            bool(specification.get("truncateOps")),
            bool(specification.get("idleSessions", True)),
            bool(specification.get("allUsers")),
        )

    def document(self) -> dict[str, bool]:
        """Return the document for `parse`."""
        return {
            "idleConnections": self.idle_connections,
            "idleCursors": self.idle_cursors,
            "truncateOps": self.truncate_ops,
            "idleSessions": self.idle_sessions,
            "allUsers": self.all_users,
        }


SHOWN_CHARACTERS_MAX: Final = 1000
"""Length of the shown part of truncated commands, as in MongoDB."""

_BYTES_MAX: Final = BSON_OBJECT_BYTES_MAX - 1024 * 1024
"""Maximum size of all operations; the rest of a message is for the stages that follow."""


def fitting(operations: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the operations; if they are too large together, with truncated commands without their comments.

    A mongos returns them in several batches. Here they are in one document if they come from another process, or if a
    shard runs further stages on them.
    """
    if sum(len(encode_document(each)) for each in operations) <= _BYTES_MAX:
        return list(operations)
    return [_truncated(each) for each in operations]


def beginning(body: bytes) -> str:
    """Return the text of a truncated command."""
    text = document_text(body)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else text[: SHOWN_CHARACTERS_MAX - 3] + "..."


def _truncated(operation: dict[str, Any]) -> dict[str, Any]:
    shown = dict(operation)
    for name in ("command", "originatingCommand"):
        body = encode_document(shown[name]) if name in shown else b""
        if len(body) > SHOWN_CHARACTERS_MAX:
            shown[name] = {"$truncated": beginning(body)}
    return {**shown, "cursor": _truncated(shown["cursor"])} if "cursor" in shown else shown


_NAMED_IN_FULL: Final = frozenset(
    {
        *("dataSize", "datasize", "enableSharding", "enablesharding", "flushRouterConfig", "flushrouterconfig"),
        *("getShardVersion", "getshardversion", "mergeChunks", "moveChunk", "movechunk", "moveRange"),
        *("movePrimary", "moveprimary"),
        *("renameCollection", "setAllowMigrations", "shardCollection", "shardcollection", "split"),
        *("splitVector", "updateZoneKeyRange"),
    }
)
"""Commands whose argument is a full collection name or a database, regardless of the command's database."""

_NAME_SHARDS: Final = frozenset({"addShard", "addShardToZone", "addshard", "removeShardFromZone"})


def request_namespace(request: Request) -> str:
    """Return the namespace of a request; only the database if it names no collection."""
    return namespace_of(request, in_full=_NAMED_IN_FULL, without=_NAME_SHARDS)


_OPEN: Final = frozenset({Phase.IN_PROGRESS, Phase.COMMITTING})
_UUID_BYTES: Final = 16
_MICROSECOND: Final = timedelta(microseconds=1)


def shown_transaction(transaction: RouterTransaction) -> dict[str, Any]:
    """Return the field ``transaction``, with mongos's fields."""
    times, read_concern = transaction.times, transaction.read_concern
    active_seconds, open_seconds = times.active_seconds, times.open_seconds
    participants = transaction.participants
    shown: dict[str, Any] = {
        "parameters": {
            "txnNumber": Int64(transaction.number),
            "autocommit": False,
            **({"readConcern": read_concern} if read_concern else {}),
        },
        **({} if transaction.at_cluster_time is None else {"globalReadTimestamp": transaction.at_cluster_time}),
        "startWallClockTime": iso_text(times.started),
        "timeOpenMicros": _micros(open_seconds),
        "timeActiveMicros": _micros(active_seconds),
        "timeInactiveMicros": _micros(max(0.0, open_seconds - active_seconds)),
        "numParticipants": len(participants),
        "participants": [
            _participant(shard, each, is_coordinator=shard == transaction.coordinator)
            for shard, each in participants.items()
        ],
        "numReadOnlyParticipants": _count(participants, is_read_only=True),
        "numNonReadOnlyParticipants": _count(participants, is_read_only=False),
    }
    if times.commit_started is not None and transaction.commit_plan is not None:
        shown["commitStartWallClockTime"] = iso_text(times.commit_started)
        shown["commitType"] = transaction.commit_plan.path.value
    return shown


def idle_sessions(table: TransactionTable, address: str, user: bytes | None) -> Iterator[dict[str, Any]]:
    """Yield the sessions with an open transaction in which no command is running.

    Args:
        address: ``host:port`` of this router.
        user: the digest of the user whose sessions to show; None for all.
    """
    for key, session in table.sessions.items():
        transaction = session.transaction
        if transaction is None or transaction.phase not in _OPEN or session.is_active:
            continue
        if user is not None and key[_UUID_BYTES:] != user:
            continue
        yield {
            "type": "idleSession",
            "host": address,
            "desc": "inactive transaction",
            **_client(session),
            "lsid": {"id": Binary(key[:_UUID_BYTES], UUID_SUBTYPE), "uid": Binary(key[_UUID_BYTES:])},
            "active": False,
            "transaction": shown_transaction(transaction),
        }


def _client(session: RouterSession) -> dict[str, Any]:
    """Return the fields about the client that began the transaction."""
    client = session.client
    if client is None:
        return {}
    metadata = client.metadata or {}
    name = metadata.get("application", {}).get("name", "")
    return {
        "client": client.peer,
        "connectionId": client.id,
        "appName": name,
        **({"clientMetadata": metadata} if metadata else {}),
    }


def _participant(shard: str, participant: Participant, *, is_coordinator: bool) -> dict[str, Any]:
    known = {} if participant.is_read_only is None else {"readOnly": participant.is_read_only}
    return {"name": shard, "coordinator": is_coordinator, **known}


def _count(participants: Mapping[str, Participant], *, is_read_only: bool) -> int:
    return sum(each.is_read_only is is_read_only for each in participants.values())


def _micros(seconds: float) -> Int64:
    return Int64(timedelta(seconds=seconds) // _MICROSECOND)


KINDS: Final = dict(find="query", getMore="getmore", insert="insert", update="update", delete="remove")
"""The field ``op`` by command; for other commands it is ``command``."""

_numbers = count(1)


def local_operations(
    context: RouterContext, wanted: CurrentOpArguments, owner: UserName | None
) -> list[dict[str, Any]]:
    """Return the ``$currentOp`` entries of this process.

    Args:
        wanted: the selection.
        owner: the user whose connections, cursors and sessions to show; None for all users.
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
    """Return the user that has logged in on a connection."""
    user: UserName | None = None if client.login is None else client.login.user
    return user


def interrupt_operations(context: RouterContext, is_meant: Callable[[Operation], bool]) -> list[Operation]:
    """Interrupt operations of this process; return them.

    The connections on which they wait for shards are closed, which ends their reads there.
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
    """Return the connections of clients, without the router's other processes."""
    return (client for client in context.clients.connections if client.peer != LOCAL_PEER)


def _is_of(entry: OpenCursor, user: bytes | None) -> bool:
    """Whether a cursor belongs to the user with a digest; any user matches None."""
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
    """Return an opid that no other process of this router uses."""
    processes = max(1, len(context.options.worker_sockets))
    return next(_numbers) * processes + context.options.worker_index


def _idle_connection(context: RouterContext, client: ClientConnection) -> dict[str, Any]:
    return _connection(context, client, is_active=False)


def _connection(context: RouterContext, client: ClientConnection, *, is_active: bool) -> dict[str, Any]:
    metadata = client.metadata or {}
    user = user_of(client)
    return {
        "type": "op",
        "host": context.options.address,
        "desc": f"conn{client.id}",
        "connectionId": client.id,
        "client": client.peer,
        **({"appName": client.app_name} if client.app_name else {}),
        **({"clientMetadata": metadata} if metadata else {}),
        "active": is_active,
        "currentOpTime": datetime.now(UTC).isoformat(timespec="milliseconds"),
        **({} if user is None else {"effectiveUsers": [user.to_document()]}),
    }


def namespace_shown(request: Request) -> str:
    """Return the namespace of a request as MongoDB shows it, always with a collection."""
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
