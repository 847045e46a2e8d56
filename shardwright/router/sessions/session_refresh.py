"""The session refresh: write the recorded uses, and kill the cursors and transactions of ended sessions.

Every router process runs it every five minutes, and on ``refreshLogicalSessionCacheNow``.
"""

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from time import monotonic, time
from typing import Any, Final, TypeVar

import bson
import trio

from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.begun_operation import running_operation
from shardwright.router.operations.operation import Operation
from shardwright.router.operations.retry import with_routing
from shardwright.router.operations.scatter import forwarded, scatter
from shardwright.router.operations.write_execution import execute
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.replies.cursor_reply import first_batch
from shardwright.router.replies.shard_reply import raise_worst
from shardwright.router.sessions.session_work import end_work, sessions_at_work
from shardwright.router.writes.batch import WriteKind
from shardwright.sharding.logical_sessions import COLLECTION, DB, NAMESPACE, SessionChanges, SessionId
from shardwright.wire.errors import BackendError, CommandError, check_writes
from shardwright.wire.frames import next_request_id
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.rawbson import InvalidBSONError, decode_document
from shardwright.wire.request import Request

logger = get_logger("router.sessions")

Item = TypeVar("Item")

_BATCH: Final = 1000
_WRITE_CONCERN: Final = {"w": "majority", "wtimeout": 15_000}
_TELLING_SECONDS_MAX: Final = 10.0


async def refresh_repeatedly(context: RouterContext) -> None:
    """Refresh every ``logicalSessionRefreshMillis`` until cancelled."""
    while True:
        await trio.sleep(context.parameters["logicalSessionRefreshMillis"] / 1000)
        if context.parameters["disableLogicalSessionCacheRefresh"]:
            continue
        try:
            await refresh_sessions(context)
        except (CommandError, BackendError) as error:
            logger.warning("Could not refresh the sessions", error=str(error))


async def refresh_sessions(context: RouterContext) -> None:
    """Write the uses recorded since the last refresh, and kill the work of sessions that have ended or expired.

    Refreshes run one at a time. Otherwise a session that one is about to write could look ended to another.

    Raises:
        CommandError: the sessions could not be written; they are kept for the next refresh.
    """
    async with context.session_jobs.turn:
        await _refresh(context)


async def _refresh(context: RouterContext) -> None:
    started = monotonic()
    await _request_collection(context)
    at_work = sessions_at_work(context)  # later ones may not have been written yet
    changes = context.sessions.take()
    running = _sessions_of_operations(context) - changes.ended
    changes.used.update(dict.fromkeys(running, time()))
    try:
        await _write(context, changes)
    except BaseException:
        context.sessions.put_back(changes)
        raise
    used, ended = ({session.key for session in sessions} for sessions in (changes.used, changes.ended))
    missing = await _missing(context, at_work - used - ended)
    used_since = {session.key for session in context.sessions.sessions()}
    killed = await end_work(context, ended | (missing - used_since))
    reading = context.cursors.sessions() | {session.key for session in running}
    await _keep_on_shards(context, used & reading)
    context.session_jobs.record(
        time(), monotonic() - started, refreshed=len(changes.used), ended=len(changes.ended), cursors_closed=killed
    )


def _sessions_of_operations(context: RouterContext) -> set[SessionId]:
    """Return the sessions of running operations, because an operation may outlast the lifetime of its session."""
    found = set()
    for client in context.clients.connections:
        operation = running_operation(client)
        if operation is not None:
            with suppress(CommandError, InvalidBSONError):  # a new operation is not checked yet
                lsid = operation.request.raw_object(b"lsid")
                found |= set() if lsid is None else {SessionId.read(lsid)}
    return found


async def _request_collection(context: RouterContext) -> None:
    """Request the sessions collection from the config servers, which hold it themselves until they can shard it."""
    routing = await context.routing.collection(NAMESPACE)
    if routing.is_sharded:
        return
    try:
        await context.catalog.command({"refreshLogicalSessionCacheNow": 1})
    except CommandError as error:
        # There are no shards yet, or a genuine config server, which accepts the command in tests only.
        logger.info("The sessions collection is not sharded", error=str(error))


async def _write(context: RouterContext, changes: SessionChanges) -> None:
    """Write the last uses, then delete the ended sessions."""
    updates = (
        {
            "q": {"_id": session.to_document()},
            "u": {"$max": {"lastUse": datetime.fromtimestamp(last_use, UTC)}, **_user_of(changes, session)},
            "upsert": True,
        }
        for session, last_use in changes.used.items()
    )
    await _run(context, WriteKind.UPDATE, updates)
    deletes = ({"q": {"_id": session.to_document()}, "limit": 1} for session in changes.ended)
    await _run(context, WriteKind.DELETE, deletes)


def _user_of(changes: SessionChanges, session: SessionId) -> dict[str, Any]:
    """Build the part of an update that sets the user of a new session."""
    user = changes.users.get(session)
    return {} if user is None else {"$setOnInsert": {"user": {"name": user}}}


async def _run(context: RouterContext, kind: WriteKind, statements: Iterable[dict[str, Any]]) -> None:
    field = kind.field.decode()
    for batch in _batches(statements):
        command = {kind.command: COLLECTION, field: batch, "ordered": False, "writeConcern": _WRITE_CONCERN}
        reply = await execute(_operation(context, command), kind)
        document = decode_document(OpMsg(reply).body) if isinstance(reply, bytes) else dict(reply or {})
        check_writes(document)


async def _missing(context: RouterContext, sessions: Collection[bytes]) -> set[bytes]:
    """Return the sessions that are not in the collection, because they expired or another server ended them."""
    missing = set(sessions)
    for batch in _batches(sessions):
        ids = [SessionId.of_key(session).to_document() for session in batch]
        find = {"find": COLLECTION, "filter": {"_id": {"$in": ids}}, "projection": {"_id": 1}, "batchSize": _BATCH + 1}
        missing -= set(await _found(_operation(context, {**find, "singleBatch": True})))
    return missing


async def _keep_on_shards(context: RouterContext, sessions: Collection[bytes]) -> None:
    """Refresh on the shards the sessions that read through this router.

    A mongod kills the cursors of sessions that were not used on it for too long. But a cursor over several shards may
    read from one shard for hours before it reaches the next. A shard that does not answer gets them at the next
    refresh.
    """
    shards = await context.shards.all_ids() if sessions else ()
    for batch in _batches(sessions):
        named = [SessionId.of_key(session).to_document() for session in batch]
        operation = _operation(context, {"refreshSessions": named})
        with trio.move_on_after(_TELLING_SECONDS_MAX):
            for reply in await scatter(operation, {shard: forwarded(operation, b"") for shard in shards}):
                if reply.error is not None:
                    logger.warning("Could not refresh sessions", shard=reply.shard_id, error=str(reply.error))


def _batches(items: Iterable[Item]) -> Iterator[list[Item]]:
    iterator = iter(items)
    while batch := list(islice(iterator, _BATCH)):
        yield batch


async def _found(operation: Operation) -> list[bytes]:
    async def attempt(routing: CollectionRouting) -> list[bytes]:
        frames = {shard: forwarded(operation, routing.versions_for(shard)) for shard in routing.shards}
        replies = await scatter(operation, frames, may_repeat=True)
        raise_worst(replies)
        return [session for reply in replies for session in _sessions_in(reply.frame)]

    return await with_routing(operation, NAMESPACE, attempt)


def _sessions_in(frame: bytes) -> Iterator[bytes]:
    for document in map(decode_document, first_batch(frame)):
        yield bytes(document["_id"]["id"]) + bytes(document["_id"]["uid"])


def _operation(context: RouterContext, command: dict[str, Any]) -> Operation:
    body = bson.encode({**command, "$db": DB})
    return Operation.of_router(context, Request(OpMsg(op_msg(body, request_id=next_request_id()))))
