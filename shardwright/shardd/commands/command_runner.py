"""Running one of the daemon's own commands: the checks before it, and the reply."""

from typing import Any

import bson
import trio

from shardwright.daemon.sidecar.term_scope import working_for
from shardwright.shardd.commands.command_registry import Command, RawReply
from shardwright.shardd.commands.components import ShardComponents
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.gossip import gossip
from shardwright.shardd.exchange.time_limit import seconds_allowed
from shardwright.shardd.metadata.stale_errors import StaleError
from shardwright.sharding.arguments import full_namespace
from shardwright.sharding.session_cache import NAMESPACE as SESSIONS
from shardwright.sharding.versions import DATABASE_VERSION, DatabaseVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import reply, reply_of_elements
from shardwright.wire.request import Request
from shardwright.wire.transport.client_connection import ClientConnection


async def run_command(command: Command, shard: ShardComponents, client: ClientConnection, request: Request) -> bytes:
    """Run a command; returns the frame of the reply.

    Raises:
        CommandError: it must not run here or now, or it failed.
        BackendError: mongod does not answer.
    """
    context = shard.context
    if command.is_interruptible:
        client.allow_interruption()
    if command.admin_only and request.db != "admin":
        raise CommandError(ErrorCode.Unauthorized, f"{command.name} may only be run against the admin database.")
    if command.primary_only:
        term = await context.sidecar.certainty.present_term()
        if term is None:
            raise CommandError(ErrorCode.NotWritablePrimary, "not primary")
        with working_for(term), context.sidecar.certainty.while_role_lasts():
            return await _run(command, shard, request)
        raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")
    return await _run(command, shard, request)


async def _run(command: Command, shard: ShardComponents, request: Request) -> bytes:
    context = shard.context
    context.config_times.observe(request)
    if command.needs_identity:
        await context.load_identity()
    if command.is_ddl and not _is_about_sessions(request):
        await check_database_version(context, request, full_namespace(request).db if command.admin_only else None)
    try:
        with trio.move_on_after(seconds_allowed(request)) as deadline:
            body = await command.handler(shard, request)
        if deadline.cancelled_caught:
            # A coordinator goes on; only the wait for it ends.
            raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")
    finally:
        if command.is_ddl:
            context.views.forget()
    if isinstance(body, RawReply):
        rest = bson.encode({"ok": 1.0, **await _times(context)})[4:-1]
        return reply_of_elements(request.message.request_id, (*body.elements, rest))
    body.setdefault("ok", 1.0)
    body.update(await _times(context))
    return reply(request.message.request_id, bson.encode(body))


async def _times(context: ShardContext) -> dict[str, Any]:
    """The times in the reply. mongod is given the newest cluster time first, so that none goes back.

    Raises:
        CommandError: InterruptedDueToReplStateChange, the term is over.
    """
    times = context.config_times
    own = await gossip(context.mongod, times.clock.time.cluster_time)
    times.observe_reply(own)
    return {**times.gossip(), **own}


def _is_about_sessions(request: Request) -> bool:
    """Whether a command shards ``config.system.sessions``, whose database has no primary shard."""
    return request.name == "_shardsvrCreateCollection" and f"{request.db}.{request.collection}" == SESSIONS


async def check_database_version(context: ShardContext, request: Request, db: str | None = None) -> None:
    """Check that a DDL command was routed by the current version of its database, to the primary shard.

    Args:
        context: this shard daemon's context.
        request: the command.
        db: the database that it changes, if that is not the one on which it is run.

    Raises:
        CommandError: IllegalOperation, it has no version, or this is not the primary shard; StaleDbVersion.
    """
    span = request.fields.get(DATABASE_VERSION)
    if span is None:
        raise CommandError(ErrorCode.IllegalOperation, "Request sent without attaching database version")
    db = db or request.db
    received = DatabaseVersion.from_span(request.body, span)
    raw = request.body[span[2] : span[3]]
    state = context.database(db)
    try:
        state.check(raw, received)
    except StaleError as error:
        if not error.may_shard_be_stale:
            raise
        await context.refresher.refresh_database(state)
        state.check(raw, received)
    assert state.entry is not None
    this = context.require_identity().shard_name
    if state.entry.primary != this:
        raise CommandError(
            ErrorCode.IllegalOperation,
            f"This is not the primary shard for db {db} expected: {state.entry.primary} shardId: {this}",
        )
