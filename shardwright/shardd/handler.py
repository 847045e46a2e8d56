"""Handling each request: it is answered here, checked and forwarded, or forwarded unchanged.

Most requests are versioned operations, for which `_run_versioned` does everything.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

import shardwright.shardd.commands  # noqa: F401 - registers the commands
from shardwright.daemon.metrics import LabelledCounter
from shardwright.daemon.namespaces import namespace_of as logged_namespace_of
from shardwright.daemon.sidecar.access import SidecarAccess
from shardwright.daemon.sidecar.handler import SidecarHandler
from shardwright.daemon.sidecar.log_rotation import LOG_ROTATE, rotate_both_logs
from shardwright.daemon.sidecar.noop_writer import READ_CONCERN
from shardwright.daemon.sidecar.own_operations import with_daemon_operations
from shardwright.daemon.sidecar.sharding_statistics import with_sharding_statistics
from shardwright.daemon.sidecar.upstream import Upstream
from shardwright.shardd.commands.command_registry import COMMANDS
from shardwright.shardd.commands.command_runner import run_command
from shardwright.shardd.exchange.operation_generation import OperationGeneration
from shardwright.shardd.exchange.term_exchange import TermExchange, is_linearizable
from shardwright.shardd.local_mongod.raw_replies import is_ok
from shardwright.shardd.metadata.causal_reads import CausalReads
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.metadata.renamed import is_renamed
from shardwright.shardd.metadata.stale_errors import StaleError, stale_reply
from shardwright.shardd.metadata.views import CHANGES_OF_VIEWS
from shardwright.shardd.operations.admission import NAMED_IN_FULL, Admission, Entry, is_read, namespace_of
from shardwright.shardd.operations.involved_cursors import InvolvedCursors
from shardwright.shardd.operations.involvement import InvolvementFinder, named_namespaces
from shardwright.shardd.operations.merging_pipelines import merges_cursors
from shardwright.shardd.operations.moving_databases import REFUSED_DURING_MOVES, check_not_moving
from shardwright.shardd.operations.retried_writes import answer_retried_write
from shardwright.shardd.operations.sharded_operations import SHARDED_OPERATIONS, ShardedOperation
from shardwright.shardd.operations.topology_gossip import is_for_all_shards, run_with_topology_time
from shardwright.shardd.operations.writing_pipelines import is_writing, without_batch_size
from shardwright.shardd.orphans.error_texts import without_filter_in_errors
from shardwright.shardd.orphans.filtered_commands import hiding_moves, without_orphans
from shardwright.shardd.orphans.hidden_filters import shows_queries, without_filters
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter
from shardwright.shardd.orphans.unowned import unowned_filter
from shardwright.shardd.range_deleter.older_readers import close_cursor
from shardwright.shardd.range_deleter.past_ownership import ownership_at, snapshot_time
from shardwright.shardd.shard_server import ShardServer
from shardwright.shardd.transactions.endings import ENDINGS
from shardwright.shardd.transactions.moved_databases import check_not_moved_since
from shardwright.shardd.transactions.moved_ranges import check_not_moved, snapshot_filter
from shardwright.shardd.transactions.open_transaction import OpenTransaction
from shardwright.shardd.transactions.session_kills import KILLS
from shardwright.shardd.transactions.snapshot_reads import SnapshotReads, is_snapshot_read
from shardwright.shardd.two_phase_commit.server_status import SERVER_STATUS, with_commit_statistics
from shardwright.shardd.two_phase_commit.statement_fields import expect_commit
from shardwright.sharding.command_text import command_text
from shardwright.sharding.commit_protocol import COORDINATOR
from shardwright.sharding.involved_namespaces import INVOLVED_NAMESPACES
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.operation_session import AUTOCOMMIT, TXN_NUMBER
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.hello import HELLO_NAMES
from shardwright.wire.logger import get_logger
from shardwright.wire.message import reply_document
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.request_loop import in_own_task, may_run_in_reactor

logger = get_logger("shardd.operations")

_BEGIN_IN_REACTOR: Final = frozenset(
    {
        *("abortTransaction", "aggregate", "commitTransaction", "count", "delete", "distinct", "find", "findAndModify"),
        *("findandmodify", "getMore", "insert", "update"),
    }
)
"""Commands that hardly ever wait for anything but mongod; where they do, they call `in_own_task`."""

REPEATABLE_READS: Final = frozenset({"aggregate", "count", "distinct", "find"})
"""Reads of documents, which can be repeated until they are answered."""

_NAMED_IN_FULL: Final = NAMED_IN_FULL.union(command.name for command in COMMANDS.values() if command.admin_only)
"""Commands whose argument is ``db.collection``, or a database, rather than a collection of the command's database."""


_FOR_USERS: Final = {
    "cleanupOrphaned": "cleanupOrphaned",
    "currentOp": "inprog",
    "getParameter": "getParameter",
    "getShardVersion": "getShardVersion",
    "killOp": "killop",
    "setParameter": "setParameter",
    "shardingState": "shardingState",
}
"""The daemon's own commands that users may run, each with the action that they need on the cluster."""


class ShardHandler(SidecarHandler):
    """Handles the requests of all clients of a shard daemon (see `wire.transport.server.Handler`)."""

    def __init__(self, shard: ShardServer, stale_errors: LabelledCounter) -> None:
        self._shard = shard
        self._context = context = shard.context
        self._admission = Admission(
            context.namespace,
            context.database,
            context.refresher,
            context.recovery_gate,
            InvolvementFinder(context.namespace, context.database, context.refresher, context.views),
            context.sidecar.certainty,
        )
        self._involved_cursors = InvolvedCursors(self._admission)
        self._causal_reads = CausalReads(context.mongod)
        self._snapshot_reads = SnapshotReads(context, shard.transactions)
        self._stale_errors = stale_errors
        access = SidecarAccess(_FOR_USERS, COMMANDS.__contains__, command_text)
        super().__init__(context.sidecar, context.metrics, context.options.slow_ms, logger, access)

    def namespace_of(self, request: Request) -> str:
        """The namespace of a request, for the log."""
        return logged_namespace_of(request, in_full=_NAMED_IN_FULL)

    @may_run_in_reactor
    async def dispatch(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        """Handle a request according to its kind (see `SidecarHandler.dispatch`)."""
        if request.name not in _BEGIN_IN_REACTOR:
            await in_own_task()
            if request.name in REFUSED_DURING_MOVES:
                check_not_moving(self._context, request)
        fields = request.fields
        command = COMMANDS.get(request.name)
        if command is not None:
            await in_own_task()
            return await run_command(command, self._shard.components, client, request)
        if AUTOCOMMIT in fields:
            if request.name in ENDINGS:
                return await self._end_transaction(client, upstream, request)
            return await self._run_statement(client, upstream, request)
        return await self._dispatch_operation(client, upstream, request)

    @may_run_in_reactor
    async def _run_statement(self, client: ClientConnection, upstream: Upstream, request: Request) -> bytes | None:
        """Run a statement of a transaction, which also goes on if the router is to move the document elsewhere."""
        run = partial(self._dispatch_operation, client, upstream)
        coordinators = self._shard.transaction_coordinators
        try:
            reply = await self._shard.transactions.statements.run(upstream, request, run)
        except CommandError as error:
            if COORDINATOR in request.fields and error.code == ErrorCode.WouldChangeOwningShard:
                expect_commit(request, coordinators)
            raise
        if COORDINATOR in request.fields and (reply is None or is_ok(response_body(reply))):
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
            request = hiding_moves(request)
        if SHARD_VERSION in fields or DATABASE_VERSION in fields or INVOLVED_NAMESPACES in fields:
            if is_for_all_shards(request):
                await in_own_task()
                run = partial(self._run_versioned, client, upstream, request, transaction, is_whole=True)
                return await run_with_topology_time(self._context, request, run)
            if shows_queries(request):
                return without_filters(await self._run_versioned(client, upstream, request, is_whole=True))
            return await self._run_versioned(client, upstream, request, transaction)
        if request.name in HELLO_NAMES:
            await in_own_task()
            return await self._context.sidecar.answer_hello(client, upstream, request)
        if request.name == LOG_ROTATE:
            await in_own_task()
            return await rotate_both_logs(upstream, request)
        # An unversioned request. mongod itself ends operations that are useless without their client.
        client.allow_interruption()
        await self._context.sidecar.prepare(request)
        if transaction is not None and not transaction.has_snapshot:
            transaction.note_snapshot(snapshot_time(request))
        flags = request.message.flags
        if request.name == "getMore":
            return await self._get_more(upstream, request)
        if request.name in KILLS:
            await in_own_task()
            reply = await upstream.forward(request.message.frame, flags)
            if reply is not None and is_ok(response_body(reply)):
                await in_own_task()
                await self._shard.transactions.note_kill(request)
            return reply
        if request.name == SERVER_STATUS:
            section = self._shard.transaction_coordinators.statistics.server_status()
            reply = with_commit_statistics(await upstream.forward(request.message.frame, flags), section)
            return with_sharding_statistics(reply, request, self._shard.resharding.statistics.to_section())
        if shows_queries(request):
            return without_filters(
                await upstream.forward(with_daemon_operations(request, self._shard.components.operations), flags)
            )
        try:
            return await upstream.pass_on(request.message.frame, flags)
        finally:
            if request.name in CHANGES_OF_VIEWS:
                self._context.views.forget()

    @may_run_in_reactor
    async def _run_versioned(
        self,
        client: ClientConnection,
        upstream: Upstream,
        request: Request,
        transaction: OpenTransaction | None = None,
        *,
        is_whole: bool = False,
    ) -> bytes | None:
        is_write = not is_read(request)
        must_report_term = is_write or AUTOCOMMIT in request.fields
        if self._context.identity is None:
            await self._context.load_identity()
        if is_writing(request):
            must_report_term = True
            request = without_batch_size(request)
        elif not is_write:
            client.allow_interruption()
        if READ_CONCERN in request.fields:
            must_report_term = must_report_term or is_linearizable(request)
            await self._wait_for_read_concern(request)
        if TXN_NUMBER in request.fields and transaction is None and len(self._shard.transactions.open):
            await self._shard.transactions.statements.end_older(upstream, request)
        admission = self._admission
        involved: Sequence[Entry] = ()
        state = admission.try_admit(request, transaction, is_write=is_write)
        if state is None:
            self._context.config_times.observe(request)
            try:
                state, involved = await admission.admit(request, transaction, is_write=is_write)
            except StaleError as error:
                self._stale_errors.add(error.code_name)
                reply_body = stale_reply(request, error, self._context.config_times.gossip())
                return reply_document(request.message.request_id, reply_body)
        # The state at the moment of admission applies to the whole operation.
        operations, orphans, table = state.operations, state.orphans, state.table
        is_whole = is_whole or bool(involved)  # for the cursor id in the reply
        exchange = TermExchange(
            self._context.sidecar, upstream, operations, must_report_term=must_report_term, is_whole=is_whole
        )
        # A write is not cancelled before mongod has answered, even if its client disconnects: a critical section that
        # waits for it must not go on while it may still be running.
        try:
            if transaction is not None:
                orphans = await self._prepare_statement(transaction, state, request)
            if transaction is not None or READ_CONCERN in request.fields:
                databases = self._databases_read(request, state, involved)
                check_not_moved_since(databases, transaction, partial(snapshot_time, request))
            if TXN_NUMBER in request.fields and self._shard.history_table.sessions:
                await in_own_task()
                run = partial(self._run_admitted, exchange, state, orphans)
                reply = await answer_retried_write(self._context.mongod, self._shard.history_table, request, run)
                if reply is not None:
                    return reply
            reply = await self._run_admitted(exchange, state, orphans, request)
            if table is not None:
                if is_write:
                    self._shard.auto_splitter.observe(request, reply, state, table)
                elif operations.is_superseded and reply is not None:
                    reply = await self._read_again(exchange, state.namespace, table, request, reply)
            if involved:
                self._involved_cursors.observe(reply, involved)
            return reply
        finally:
            state.exit(operations, is_write=is_write)
            for entry in involved:
                entry.leave()
            if request.name in CHANGES_OF_VIEWS:
                self._context.views.forget()

    @may_run_in_reactor
    async def _wait_for_read_concern(self, request: Request) -> None:
        """Wait until this shard can read what a read concern asks for.

        This precedes the comparison of versions, as on a genuine shard: the placement known here has to be at least as
        new as the time that the read is after.
        """
        await self._context.sidecar.prepare(request)
        is_primary, is_snapshot = self._context.is_primary, is_snapshot_read(request)
        if is_primary and not is_snapshot:
            return
        namespaces = (namespace_of(request), *named_namespaces(request))
        if not is_primary:
            for name in namespaces:
                await self._causal_reads.prepare(request, self._context.namespace(name))
        if is_snapshot:
            await in_own_task()
            await self._snapshot_reads.wait_decided(request, namespaces)

    @may_run_in_reactor
    async def _prepare_statement(
        self, transaction: OpenTransaction, state: NamespaceState, request: Request
    ) -> OwnershipFilter | None:
        """Check that an admitted statement fits the snapshot of its transaction; returns the filter for that."""
        if not transaction.has_snapshot:
            transaction.note_snapshot(snapshot_time(request))
        check_not_moved(transaction, state, request)
        table, time = state.table, transaction.snapshot_time
        if table is None or READ_CONCERN in request.fields:
            return state.orphans  # if it reads at a time, `_run_admitted` replaces that
        if time is not None:
            await in_own_task()
            return await ownership_at(self._shard.range_deletions, table, state.shard, time)
        return snapshot_filter(transaction, state, table)

    def _databases_read(
        self, request: Request, state: NamespaceState, involved: Sequence[Entry]
    ) -> Iterator[DatabaseState]:
        """The databases of the unsharded collections that an operation uses."""
        if state.table is None and DATABASE_VERSION in request.fields:
            yield self._context.database(request.db)
        for entry in involved:
            yield entry.involved.database

    @may_run_in_reactor
    async def _read_again(
        self, exchange: TermExchange, name: str, table: RoutingTable, request: Request, frame: bytes
    ) -> bytes | None:
        """Repeat a read with a filter, because a range may have been received while it was under way.

        If the collection was renamed meanwhile, the router has to send it again, to all shards.

        The filter hides everything that the shard did not own when the read was admitted, so one repetition is enough.
        """
        await in_own_task()
        body = response_body(frame)
        if request.name not in REPEATABLE_READS or is_writing(request) or snapshot_time(request) or not is_ok(body):
            return frame
        if AUTOCOMMIT in request.fields:
            raise CommandError(
                ErrorCode.MigrationConflict, f"a range of {name} was received while the transaction was reading it"
            )
        if merges_cursors(request):
            return frame  # the shards that have the documents see to that
        namespace = Namespace.parse(name)
        await close_cursor(self._context.mongod, namespace, body)
        state = self._context.namespace(name)
        if is_renamed(state, table):
            error = state.stale(table.shard_version(state.shard), f"the collection {name} was renamed meanwhile")
            return reply_document(
                request.message.request_id, stale_reply(request, error, self._context.config_times.gossip())
            )
        logger.info("Repeating a read because a range is being received", namespace=name, command=request.name)
        ownership = unowned_filter(table, self._context.require_identity().shard_name)
        if ownership is None:
            raise CommandError(ErrorCode.QueryPlanKilled, "a range was received while the operation was under way")
        return await exchange.run(await without_orphans(request, self._context.mongod, namespace, ownership))

    @may_run_in_reactor
    async def _get_more(self, upstream: Upstream, request: Request) -> bytes | None:
        """The next batch of a cursor, without documents of ranges that were received after it was opened."""
        former, in_use = self._shard.former_cursors, self._context.open_cursors.in_use
        if not former.are_gone:
            await in_own_task()
            await former.wait_gone(request)
        if in_use.is_held:
            await in_own_task()
            await in_use.wait_released()
        span = request.fields[b"getMore"]
        cursor_id = request.body[span[2] : span[3]]
        in_use.enter(cursor_id)
        try:
            return await self._next_batch(upstream, request, cursor_id)
        finally:
            in_use.exit(cursor_id)

    @may_run_in_reactor
    async def _next_batch(self, upstream: Upstream, request: Request, cursor_id: bytes) -> bytes | None:
        older, involved = self._shard.older_cursors, self._involved_cursors.find(request)
        frame, flags = request.message.frame, request.message.flags
        if involved:
            attempt = partial(self._involved_cursors.get_more, upstream, request, involved)
        else:
            attempt = partial(upstream.pass_on, frame, flags, lambda: cursor_id not in older)
        while True:
            reply = await attempt()
            if reply is None or cursor_id not in older:
                return reply
            await in_own_task()
            reply, is_wanting = older.without_hidden(cursor_id, reply)
            if not is_wanting:
                return reply

    @may_run_in_reactor
    async def _run_admitted(
        self, exchange: TermExchange, state: NamespaceState, orphans: OwnershipFilter | None, request: Request
    ) -> bytes | None:
        table = state.table
        if table is not None:
            if READ_CONCERN in request.fields and (time := snapshot_time(request)) is not None:
                await in_own_task()
                orphans = await ownership_at(self._shard.range_deletions, table, state.shard, time)
            if orphans is not None:
                await in_own_task()
                run = partial(self._run_without_orphans, exchange, state, orphans, request)
                return await without_filter_in_errors(self._context.mongod, request, run)
        return await self._run_filtered(exchange, state, request)

    async def _run_without_orphans(
        self, exchange: TermExchange, state: NamespaceState, orphans: OwnershipFilter, request: Request
    ) -> bytes | None:
        namespace = Namespace.parse(state.namespace)
        time_series = None if state.table is None else state.table.collection.time_series
        request = await without_orphans(request, self._context.mongod, namespace, orphans, time_series)
        return await self._run_filtered(exchange, state, request)

    @may_run_in_reactor
    async def _run_filtered(self, exchange: TermExchange, state: NamespaceState, request: Request) -> bytes | None:
        special = None if state.table is None else SHARDED_OPERATIONS.get(request.name)
        if special is not None:
            reply = await special(
                ShardedOperation(self._context.mongod, self._shard.previews, exchange, request, state)
            )
            if reply is not None:
                await exchange.confirm()
                return reply
        return await exchange.run(request)
