"""Handling each request: it is answered here, checked and forwarded, or forwarded unchanged.

Most requests are versioned operations, which `VersionedOperations` runs.

**Topology time.** Routers receive the time at which a shard was added or removed since they read the shard list. A
statement that may concern any shard is sent to all of them without a version check. A router with an old list would
omit a new shard, which may have received part of the collection since. The donor of that part has the new shard in its
list. Its reply includes the time of the last change of the shard list, as all replies of genuine servers do.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

import bson

from shardwright.daemon.command_table import namespace_of as logged_namespace_of
from shardwright.daemon.current_op import with_daemon_operations
from shardwright.daemon.metrics import LabelledCounter
from shardwright.daemon.sidecar.access import SidecarAccess
from shardwright.daemon.sidecar.handler import ROTATIONS, SidecarHandler, rotate_both
from shardwright.daemon.sidecar.member_addresses import names_members, with_own_host
from shardwright.daemon.sidecar.member_metrics import CONN_POOL_STATS, with_replica_sets, with_sharding_statistics
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.daemon.sidecar.term_fence import has_failed
from shardwright.shardd.commands.command import run_command
from shardwright.shardd.commands.shard_commands import SHARD_COMMANDS
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.cursor_batches import BegunBatch, CursorBatches, InvolvedCursors
from shardwright.shardd.exchange.term_exchange import OperationGeneration, TermExchange
from shardwright.shardd.metadata.views import CHANGES_OF_VIEWS
from shardwright.shardd.operations.admission import NAMED_IN_FULL, Admission, BegunOperation
from shardwright.shardd.operations.involvement import InvolvementFinder
from shardwright.shardd.operations.sharded_operations import REFUSED_DURING_MOVES, check_not_moving
from shardwright.shardd.orphans.filtered_commands import hiding_moves
from shardwright.shardd.orphans.filtered_queries import shows_queries, without_filters
from shardwright.shardd.passages import ShardPassages
from shardwright.shardd.range_deleter.range_deleter_service import snapshot_time
from shardwright.shardd.shard_server import ShardServer
from shardwright.shardd.transactions.open_transactions import OpenTransaction
from shardwright.shardd.transactions.session_keys import KILLS, is_killed_by, session_key
from shardwright.shardd.transactions.statements import ENDINGS
from shardwright.shardd.two_phase_commit.coordinators import SERVER_STATUS, expect_commit, with_commit_statistics
from shardwright.shardd.versioned_operations import VersionedOperations
from shardwright.sharding import logical_sessions
from shardwright.sharding.bson_text import command_text
from shardwright.sharding.clock import TOPOLOGY_TIME, VectorTime, signed_cluster_time, topology_time_element
from shardwright.sharding.cluster_time import ACKNOWLEDGED_TIME
from shardwright.sharding.logical_sessions import NO_USER
from shardwright.sharding.pipelines.pipeline import INVOLVED_NAMESPACES
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, CLIENT_SESSION, COORDINATOR
from shardwright.sharding.versions import DATABASE_VERSION, IGNORED, SHARD_VERSION
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.logger import get_logger
from shardwright.wire.message import OpMsg, reply_document, with_body
from shardwright.wire.passages import EPOCH
from shardwright.wire.rawbson import OBJECT, append, without
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

logger = get_logger("shardd.operations")

_BEGIN_IN_REACTOR: Final = frozenset(
    {
        *("abortTransaction", "aggregate", "commitTransaction", "count", "delete", "distinct", "find", "findAndModify"),
        *("findandmodify", "getMore", "insert", "update"),
    }
)
"""Commands that hardly ever wait for anything but mongod; where they do, they call `in_own_task`."""

_REFRESH_SESSIONS_NOW: Final = "refreshLogicalSessionCacheNow"
_NAMED_IN_FULL: Final = NAMED_IN_FULL.union(command.name for command in SHARD_COMMANDS if command.admin_only)
"""Commands whose argument is ``db.collection``, or a database, rather than a collection of the command's database."""


def is_for_all_shards(request: Request) -> bool:
    """Whether a request was sent to all shards in its sender's list, with that list's ``$topologyTime``."""
    fields = request.fields
    if TOPOLOGY_TIME not in fields or SHARD_VERSION not in fields:
        return False
    _, _, start, end = fields[SHARD_VERSION]
    return request.body[start:end] == IGNORED.raw


async def run_with_topology_time(
    context: ShardContext, request: Request, run: Callable[[], Awaitable[bytes | None]]
) -> bytes | None:
    """Run a request that `is_for_all_shards`; add ``$topologyTime`` to the reply if the sender's shard list is old.

    Args:
        run: runs it and returns the reply frame, None if there is no reply.

    Raises:
        CommandError: TypeMismatch, the time is malformed; the config servers did not answer and the shard list is not
            cached; or raised by ``run``.
    """
    context.config_times.observe(request)
    known = VectorTime.from_message(request.body, request.fields).topology_time
    catalog = await context.catalog()
    if not catalog.knows_shards:
        await catalog.shards()
    reply = await run()
    # The time is read after the run: the request skipped documents that left while it waited.
    if reply is None or catalog.topology_time <= known:
        return reply
    return with_body(reply, append(OpMsg(reply).body, topology_time_element(catalog.topology_time)))


class ShardHandler(SidecarHandler):
    """Handles the requests of all clients of a shard daemon (see `wire.transport.server.Handler`)."""

    def __init__(self, shard: ShardServer, stale_errors: LabelledCounter) -> None:
        self._shard = shard
        self._context = context = shard.context
        self._admission = admission = Admission(
            context.namespace,
            context.database,
            context.refresher,
            context.recovery_gate,
            InvolvementFinder(context.namespace, context.database, context.refresher, context.views),
            context.sidecar.certainty,
            shard.waiting,
        )
        involved_cursors = InvolvedCursors(admission, context.open_cursors.still_open)
        options = context.options
        self.passages = ShardPassages(shard, involved_cursors)
        self._versioned = VersionedOperations(shard, admission, involved_cursors, stale_errors, self.passages)
        self._cursor_batches = CursorBatches(shard, involved_cursors)
        sidecar = context.sidecar
        access = SidecarAccess(
            sidecar.transport.cluster_auth,
            SHARD_COMMANDS,
            self._answers_user_itself,
            command_text,
            sidecar.has_to_prepare,
        )
        super().__init__(sidecar, context.metrics, options.slow_ms, logger, access, options.logs, options.audit)

    def namespace_of(self, request: Request) -> str:
        """The namespace of a request, for the log."""
        return logged_namespace_of(request, in_full=_NAMED_IN_FULL)

    def _answers_user_itself(self, request: Request) -> bool:
        """Whether the daemon answers a user's request itself.

        Whose the operations on the mongod are, the mongod decides.
        """
        if request.name == "currentOp":
            return not request.get(b"$ownOps")
        if request.name == "killOp":
            return self._shard.migrations.is_shown_as(request.get(b"op"))
        return request.name in SHARD_COMMANDS

    @may_run_in_reactor
    async def take_over(
        self, client: ClientConnection, upstream: Upstream, request: Request, begun: Begun
    ) -> bytes | None:
        """See `SidecarHandler.take_over`."""
        if isinstance(begun, BegunBatch):
            client.allow_interruption()
            return await self._cursor_batches.take_over(upstream, request, begun)
        assert isinstance(begun, BegunOperation)
        return await self._versioned.take_over(client, upstream, request, begun)

    @may_run_in_reactor
    async def dispatch(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        """Handle a request according to its kind (see `SidecarHandler.dispatch`)."""
        if request.name not in _BEGIN_IN_REACTOR:
            if ACKNOWLEDGED_TIME in request.fields and request.name == "ping":
                return await self._tell_acknowledged_time(upstream, request)
            await in_own_task()
            if request.name in REFUSED_DURING_MOVES:
                check_not_moving(self._context, request)
        fields = request.fields
        command = SHARD_COMMANDS.find(request.name)
        if command is not None and (_is_of_cluster(upstream) or self._answers_user_itself(request)):
            await in_own_task()
            components = self._shard.components
            return await self._context.sidecar.name_daemons(
                request, lambda each: run_command(command, components, client, each)
            )
        if AUTOCOMMIT in fields:
            if request.name in ENDINGS:
                return await self._end_transaction(client, upstream, request)
            return await self._run_statement(client, upstream, request)
        if request.name not in _BEGIN_IN_REACTOR or names_members(request):
            await in_own_task()
            return await self._context.sidecar.name_daemons(
                request, lambda each: self._dispatch_operation(client, upstream, each)
            )
        return await self._dispatch_operation(client, upstream, request)

    @may_run_in_reactor
    async def _tell_acknowledged_time(self, upstream: Upstream, request: Request) -> bytes | None:
        """Answer a ping with the time of the last acknowledged write (`sharding.cluster_time`)."""
        time = self._context.sidecar.acknowledged_time()
        if time is None:  # a secondary, or a primary whose term is beginning
            return await upstream.forward(request.without((ACKNOWLEDGED_TIME,)).message.frame, request.message.flags)
        times = {"$clusterTime": signed_cluster_time(time), "operationTime": time}
        return reply_document(request.message.request_id, {"ok": 1.0, **times})

    @may_run_in_reactor
    async def _run_statement(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        """Run a statement of a transaction, which also continues if the router must move the document elsewhere."""
        run = partial(self._dispatch_operation, client, upstream)
        coordinators = self._shard.transaction_coordinators
        try:
            reply = await self._shard.transactions.statements.run(client, upstream, request, run)
        except CommandError as error:
            if COORDINATOR in request.fields and error.code == ErrorCode.WouldChangeOwningShard:
                expect_commit(request, coordinators)
            raise
        if COORDINATOR in request.fields and (reply is None or not has_failed(reply)):
            expect_commit(request, coordinators)
        return reply

    @may_run_in_reactor
    async def _end_transaction(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        gate = self._shard.transactions.gate
        if not gate.is_open and self._context.is_primary:
            await in_own_task()
            # Terms begin when the set is added to a cluster; before that, no coordinator prepares transactions on it.
            if await self._context.find_identity() is not None:
                await gate.wait_open()  # until it is known which transactions are prepared

        @may_run_in_reactor
        async def run(command: Request) -> bytes | None:
            # What it commits was admitted in this term, so that its reply must not be of a later one.
            sidecar = self._context.sidecar
            exchange = TermExchange(sidecar, upstream, OperationGeneration(), must_report_term=True, is_whole=True)
            return await exchange.run(command)

        return await self._shard.transactions.endings.run(client, request, run)

    @may_run_in_reactor
    async def _dispatch_operation(
        self,
        client: ClientConnection,
        upstream: Upstream,
        request: Request,
        transaction: OpenTransaction | None = None,
    ) -> bytes | None:
        fields = request.fields
        if request.name == "aggregate":
            request = with_own_host(hiding_moves(request), self._context.sidecar.address)
        if SHARD_VERSION in fields or DATABASE_VERSION in fields or INVOLVED_NAMESPACES in fields:
            if is_for_all_shards(request):
                await in_own_task()
                return await self._run_for_all_shards(client, upstream, request, transaction)
            if shows_queries(request):
                return without_filters(await self._versioned.run(client, upstream, request, is_whole=True))
            return await self._versioned.run(client, upstream, request, transaction)
        if request.name in HELLO_NAMES:
            await in_own_task()
            return await self._context.sidecar.answer_hello(client, upstream, request)
        if request.name in ROTATIONS:
            await in_own_task()
            return await rotate_both(self._context.sidecar.transport.tls, upstream, request, self.logs)
        # An unversioned request. mongod itself ends operations that are useless without their client.
        client.allow_interruption()
        await self._context.sidecar.prepare(request)
        if transaction is not None and not transaction.has_snapshot:
            transaction.note_snapshot(snapshot_time(request))
        flags = request.message.flags
        if request.name == "getMore":
            epoch = EPOCH.number
            reply = await self._cursor_batches.get_more(upstream, request)
            self.passages.learn_batch(client, request, reply, epoch)
            return reply
        if request.name in KILLS:
            await in_own_task()
            reply = await upstream.forward(request.message.frame, flags)
            if reply is not None and not has_failed(reply):
                await in_own_task()
                is_killed = _kills(request)
                sessions = self._shard.router_sessions
                self._shard.waiting.kill_sessions(partial(sessions.is_killed, is_killed=is_killed))
                if patterns := sessions.killed_with(is_killed):
                    await self._context.mongod.command("admin", {"killAllSessionsByPattern": patterns})
                self._shard.components.coordinators.kill_sessions(is_killed)
                self._shard.fenced_cursors.forget_sessions(lambda each: is_killed(bson.encode(each.to_document())))
                await self._shard.transactions.note_kill(request)
            return reply
        if request.name == "endSessions":
            reply = await upstream.forward(request.message.frame, flags)
            if reply is not None and not has_failed(reply):
                owner = NO_USER if upstream.user is None else upstream.user.digest
                self._shard.fenced_cursors.forget_sessions(logical_sessions.sessions(request, owner).__contains__)
            return reply
        if request.name == _REFRESH_SESSIONS_NOW:
            await in_own_task()
            await self._shard.living_sessions.keep()
        if request.name == "killCursors":
            await in_own_task()
            reply = await upstream.forward(request.message.frame, flags)
            return await self._shard.fenced_cursors.after_kill(reply, upstream.user)
        if request.name == SERVER_STATUS:
            section = self._shard.transaction_coordinators.statistics.server_status()
            reply = with_commit_statistics(await upstream.forward(request.message.frame, flags), section)
            return with_sharding_statistics(reply, request, self._shard.resharding.statistics.to_section())
        if request.name == CONN_POOL_STATS:
            return with_replica_sets(await upstream.forward(request.message.frame, flags), self._context.monitors())
        if shows_queries(request):
            operations, shown_as = self._shard.components.operations, self._shard.router_sessions.stages()
            frame = with_daemon_operations(request, operations, upstream.user, shown_as)
            return without_filters(await upstream.forward(frame, flags))
        try:
            return await upstream.pass_on(request.message.frame, flags)
        finally:
            if request.name in CHANGES_OF_VIEWS:
                self._context.views.forget()

    async def _run_for_all_shards(
        self, client: ClientConnection, upstream: Upstream, request: Request, transaction: OpenTransaction | None
    ) -> bytes | None:
        """Run a request that its router has sent to all shards, without what it says of its client's session."""
        session, own = request.raw_object(CLIENT_SESSION), request.raw_object(b"lsid")
        if session is None or own is None:
            run = partial(self._versioned.run, client, upstream, request, transaction, is_whole=True)
            return await run_with_topology_time(self._context, request, run)
        with self._shard.router_sessions.used(own, session):
            plain = request.with_body(without(request.body, {CLIENT_SESSION}))
            return await self._run_for_all_shards(client, upstream, plain, transaction)


def _kills(request: Request) -> Callable[[bytes], bool]:
    """Whether a command kills a session, given by its ``lsid``."""
    is_killed = is_killed_by(request)

    def is_meant(lsid: bytes) -> bool:
        session = session_key(lsid, (OBJECT, 0, 0, len(lsid)))
        return session is not None and is_killed(session)

    return is_meant


def _is_of_cluster(upstream: Upstream) -> bool:
    """Whether the client is a member of the cluster, or there is no access control."""
    return upstream.user is None or upstream.user.is_internal
