"""Execution of operations that carry a shard version or a database version.

An operation first waits until the shard can serve its read concern. If its versions match (`operations.admission`), it
is counted and runs without orphans.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Final

from shardwright.daemon.metrics import LabelledCounter
from shardwright.daemon.sidecar.mongod import Upstream
from shardwright.daemon.sidecar.noop_writer import READ_CONCERN
from shardwright.daemon.sidecar.term_fence import has_failed
from shardwright.shardd.cursor_batches import InvolvedCursors
from shardwright.shardd.exchange.term_exchange import TermExchange, is_linearizable, seconds_allowed
from shardwright.shardd.local_mongod.reserved_sessions import is_ok
from shardwright.shardd.metadata.critical_sections import is_renamed
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import AdmittedPlacement, NamespaceState
from shardwright.shardd.metadata.refresh import CausalReads
from shardwright.shardd.metadata.views import CHANGES_OF_VIEWS
from shardwright.shardd.operations.admission import (
    Admission,
    BegunOperation,
    Entry,
    is_read,
    wait_for_read_concern,
)
from shardwright.shardd.operations.involvement import is_writing, merges_cursors, without_batch_size
from shardwright.shardd.operations.retried_writes import answer_retried_write, maybe_retried_write
from shardwright.shardd.operations.sharded_operations import SHARDED_OPERATIONS, CountedMeasurements, ShardedOperation
from shardwright.shardd.operations.waiting_operations import FOR_COMMITS
from shardwright.shardd.orphans.cursor_kinds import Opening, may_match, opening_of, results_max_of
from shardwright.shardd.orphans.filtered_commands import is_about_measurements, without_orphans
from shardwright.shardd.orphans.filtered_queries import without_filter_in_errors
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter, unowned_filter
from shardwright.shardd.passages import ShardPassages
from shardwright.shardd.range_deleter.range_deleter_service import close_cursor, has_more, ownership_at, snapshot_time
from shardwright.shardd.shard_server import ShardServer
from shardwright.shardd.transactions.open_transactions import OpenTransaction
from shardwright.shardd.transactions.session_keys import retryable_write
from shardwright.shardd.transactions.transactions import (
    SnapshotReads,
    check_not_moved,
    check_not_moved_since,
    is_snapshot_read,
    snapshot_filter,
)
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, TXN_NUMBER
from shardwright.sharding.versions import DATABASE_VERSION, StaleError, stale_reply
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.message import reply_document
from shardwright.wire.passages import EPOCH
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

logger = get_logger("shardd.operations")

REPEATABLE_READS: Final = frozenset({"aggregate", "count", "distinct", "find"})
"""Document reads, which can be repeated before they are answered."""
_OPENING_CURSORS: Final = frozenset({"aggregate", "find"})


class VersionedOperations:
    """Runner of operations with a shard version or a database version; `passages` is their fast path."""

    def __init__(
        self,
        shard: ShardServer,
        admission: Admission,
        involved_cursors: InvolvedCursors,
        stale_errors: LabelledCounter,
        passages: ShardPassages,
    ) -> None:
        self._shard = shard
        self._context = context = shard.context
        self._admission = admission
        self._involved_cursors = involved_cursors
        self._causal_reads = CausalReads(context.mongod)
        self._snapshot_reads = SnapshotReads(context, shard.transactions)
        self._stale_errors = stale_errors
        self.passages = passages

    @may_run_in_reactor
    async def run(
        self,
        client: ClientConnection,
        upstream: Upstream,
        request: Request,
        transaction: OpenTransaction | None = None,
        *,
        is_whole: bool = False,
    ) -> bytes | None:
        """Run an operation, or answer with a stale-routing error.

        Args:
            is_whole: whether to return the reply instead of passing it to the client as it arrives.

        Raises:
            CommandError: the operation cannot run now.
            BackendError: mongod does not answer.
        """
        epoch = EPOCH.number
        is_write = not is_read(request)
        must_report_term = is_write or AUTOCOMMIT in request.fields
        if self._context.identity is None:
            await self._context.load_identity()
        if is_writing(request):
            must_report_term = True
            request = without_batch_size(request)
        elif not is_write and (transaction is None or transaction.has_begun):
            # The read that begins a transaction is not interrupted: it could begin after the router's abort.
            client.allow_interruption()
        if READ_CONCERN in request.fields:
            must_report_term = must_report_term or is_linearizable(request)
            await wait_for_read_concern(self._context, request, self._causal_reads, self._snapshot_reads)
        is_retryable = TXN_NUMBER in request.fields and transaction is None
        if is_retryable and len(self._shard.transactions.open):
            await self._shard.transactions.statements.end_older(upstream, request)
        coordinators = self._shard.transaction_coordinators
        if transaction is not None and not transaction.has_begun and not coordinators.is_idle:
            # Other transactions of the same write cannot begin now, but an earlier one may still be committing.
            await self._wait_for_attempts(request, transaction.retryable_write)
        involved: Sequence[Entry] = ()
        state = self._admission.try_admit(request, transaction, is_write=is_write)
        was_admitted_at_once = state is not None
        if state is None:
            self._context.config_times.observe(request)
            try:
                state, involved = await self._admission.admit(request, transaction, is_write=is_write)
            except StaleError as error:
                self._stale_errors.add(error.code_name)
                return self._stale(request, error)
        operations, placement = state.operations, AdmittedPlacement.of(state)
        # A transaction statement needs its entry in the transaction table, so it never becomes a passage.
        may_be_passage = was_admitted_at_once and AUTOCOMMIT not in request.fields and not is_whole
        is_whole = is_whole or bool(involved)  # for the cursor id in the reply
        exchange = TermExchange(
            self._context.sidecar, upstream, operations, must_report_term=must_report_term, is_whole=is_whole
        )
        # A write is not cancelled before mongod has answered, even if its client disconnects. A critical section that
        # waits for it must not continue while the write may still be running.
        try:
            reply = await self._run_entered(
                exchange, state, placement, involved, request, transaction, is_write=is_write
            )
        finally:
            state.exit(operations, is_write=is_write)
            for entry in involved:
                entry.leave()
            if request.name in CHANGES_OF_VIEWS:
                self._context.views.forget()
        if is_retryable and not coordinators.is_idle and not has_failed(reply):
            await self._wait_for_attempts(request, retryable_write(request))
        if (
            may_be_passage
            and exchange.passed_on is request
            and reply is not None
            and placement.orphans is None
            and (READ_CONCERN not in request.fields or not (is_snapshot_read(request) or is_linearizable(request)))
        ):
            self.passages.learn(client, request, reply, state, placement, epoch)
        return reply

    @may_run_in_reactor
    async def take_over(
        self, client: ClientConnection, upstream: Upstream, request: Request, begun: BegunOperation
    ) -> bytes | None:
        """Run the rest of an operation that a passage has begun; errors as `run`."""
        state, placement, is_write, must_end = begun.state, begun.placement, begun.is_write, begun.must_end
        exchange = TermExchange(
            self._context.sidecar,
            upstream,
            begun.operations,
            must_report_term=is_write,
            is_whole=must_end,
            begun=begun,
            term=begun.term,
        )
        try:
            if not is_write:
                client.allow_interruption()
            reply = await exchange.run(request)
            if must_end and reply is not None:
                reply, placement = await self._open_cursor(exchange, state, placement, request, reply)
            reply = await self._after(exchange, state, placement, request, reply, is_write=is_write)
        finally:
            state.exit(begun.operations, is_write=is_write)
        if TXN_NUMBER in request.fields and not self._shard.transaction_coordinators.is_idle and not has_failed(reply):
            await self._wait_for_attempts(request, retryable_write(request))
        return reply

    @may_run_in_reactor
    async def _after(
        self,
        exchange: TermExchange,
        state: NamespaceState,
        placement: AdmittedPlacement,
        request: Request,
        reply: bytes | None,
        *,
        is_write: bool,
        has_snapshot: bool = False,
    ) -> bytes | None:
        """Update write statistics, or repeat a read that may have missed a range (`_read_again`)."""
        table = placement.table
        if table is not None:
            counter = self._shard.key_statistics.counter
            counter.remaining -= 1
            if counter.remaining <= 0:
                counter.sample(request, reply, state.shard, table)
            if is_write:
                self._shard.auto_splitter.observe(request, reply, state, table)
            elif exchange.operations.is_superseded and reply is not None:
                reply = await self._read_again(exchange, state, placement, request, reply, has_snapshot=has_snapshot)
        return reply

    @may_run_in_reactor
    async def _wait_for_attempts(self, request: Request, write: bytes | None) -> None:
        """Wait for the cross-shard commits of transactions that executed a retryable write before.

        mongod answers the write once such a transaction is committed here; other shards may not have committed yet.

        Args:
            request: the write, or the first statement of another transaction that executes it.
            write: as `retryable_write_of`; None if it is another write, or mongod keeps no history of its session.
        """
        if write is None:
            return
        await in_own_task()
        with self._shard.waiting.waiting(request, seconds_allowed(request), FOR_COMMITS):
            await self._shard.transaction_coordinators.wait_for_attempts(write)

    @may_run_in_reactor
    async def _run_entered(
        self,
        exchange: TermExchange,
        state: NamespaceState,
        placement: AdmittedPlacement,
        involved: Sequence[Entry],
        request: Request,
        transaction: OpenTransaction | None,
        *,
        is_write: bool,
    ) -> bytes | None:
        """Run an admitted operation; the placement at admission applies until it ends."""
        if involved and is_snapshot_read(request):
            # Only admission reveals the namespaces behind views.
            await in_own_task()
            await self._snapshot_reads.wait_decided(request, [each.involved.state.namespace for each in involved])
        has_begun = transaction is not None and transaction.has_begun
        if transaction is not None:
            placement = await self._prepare_statement(transaction, state, placement, request)
        if transaction is not None or READ_CONCERN in request.fields:
            databases = self._databases_read(request, placement, involved)
            check_not_moved_since(databases, transaction, partial(snapshot_time, request))
        history = self._shard.history_table
        if TXN_NUMBER in request.fields and history.sessions:
            write = maybe_retried_write(history, request)
            if write is not None:
                await in_own_task()
                run = partial(self._run_admitted, exchange, state, placement)
                reply = await answer_retried_write(self._context.mongod, history, request, write, run)
                if reply is not None:
                    return reply
        table, opening = placement.table, Opening.UNFILTERED
        if (
            table is not None
            and request.name in _OPENING_CURSORS
            and AUTOCOMMIT not in request.fields  # a snapshot is not affected by migrations
            and (READ_CONCERN not in request.fields or not is_snapshot_read(request))
        ):
            opening = opening_of(request, table.collection.key_pattern)
        if opening is Opening.UNFILTERED:
            reply = await self._run_admitted(exchange, state, placement, request)
        else:
            reply = None
            if opening is Opening.FILTERED_IF_OPEN:
                exchange.is_whole = True
                reply = await self._run_admitted(exchange, state, placement, request)
            if opening is Opening.FILTERED or reply is not None:
                reply, placement = await self._open_cursor(exchange, state, placement, request, reply)
        reply = await self._after(exchange, state, placement, request, reply, is_write=is_write, has_snapshot=has_begun)
        if involved:
            await self._involved_cursors.observe(reply, involved)
        return reply

    def _stale(self, request: Request, error: StaleError) -> bytes:
        gossip = self._context.config_times.gossip()
        return reply_document(request.message.request_id, stale_reply(request, error, gossip))

    @may_run_in_reactor
    async def _prepare_statement(
        self, transaction: OpenTransaction, state: NamespaceState, placement: AdmittedPlacement, request: Request
    ) -> AdmittedPlacement:
        """Check that an admitted statement fits its transaction's snapshot; return the placement at the snapshot."""
        if not transaction.has_snapshot:
            transaction.note_snapshot(snapshot_time(request))
        table, time = placement.table, transaction.snapshot_time
        if table is None:
            return placement
        check_not_moved(transaction, state, table, request)
        if READ_CONCERN in request.fields:
            return placement  # for a read at a time, `_run_admitted` replaces the filter
        if time is not None:
            await in_own_task()
            orphans = await ownership_at(self._shard.range_deletions, table, state.shard, time)
        else:
            orphans = snapshot_filter(transaction, state, table)
        return placement._replace(orphans=orphans)

    def _databases_read(
        self, request: Request, placement: AdmittedPlacement, involved: Sequence[Entry]
    ) -> Iterator[DatabaseState]:
        """Yield the databases of the unsharded collections that an operation uses."""
        if placement.table is None and DATABASE_VERSION in request.fields:
            yield self._context.database(request.db)
        for entry in involved:
            yield entry.involved.database

    @may_run_in_reactor
    async def _read_again(
        self,
        exchange: TermExchange,
        state: NamespaceState,
        placement: AdmittedPlacement,
        request: Request,
        frame: bytes,
        *,
        has_snapshot: bool,
    ) -> bytes | None:
        """Repeat a read with a filter, because a range may have arrived during it.

        If the collection was renamed during the read, the router must send it again to all shards.

        Args:
            has_snapshot: whether its transaction already had a snapshot, which migrations do not affect.
        """
        await in_own_task()
        name, table, orphans = state.namespace, placement.table, placement.orphans
        assert table is not None
        if request.name not in REPEATABLE_READS or is_writing(request) or snapshot_time(request) or has_snapshot:
            return frame
        if merges_cursors(request):
            return frame  # the source shards filter orphans
        mongod, namespace = self._context.mongod, Namespace.parse(name)
        filtered, hidden = request, 0
        while is_ok(body := response_body(frame)):
            state = self._context.namespace(name)
            if is_renamed(state, table):
                await close_cursor(mongod, namespace, body)
                error = state.stale(table.shard_version(state.shard), f"the collection {name} was renamed meanwhile")
                return self._stale(request, error)
            arriving = exchange.operations.hidden[hidden:]
            if not arriving or (orphans is not None and orphans.is_complete):
                break
            if AUTOCOMMIT in request.fields:
                raise CommandError(
                    ErrorCode.MigrationConflict, f"a range of {name} was received while the transaction was reading it"
                )
            await close_cursor(mongod, namespace, body)
            logger.info("Repeating a read because a range is being received", namespace=name, command=request.name)
            for each in arriving if hidden or orphans is None else (orphans, *arriving):
                filtered = await without_orphans(filtered, mongod, namespace, each)
            hidden += len(arriving)
            again = await exchange.run(filtered)
            if again is None:
                return None
            frame = again
        return frame

    @may_run_in_reactor
    async def _open_cursor(
        self,
        exchange: TermExchange,
        state: NamespaceState,
        placement: AdmittedPlacement,
        request: Request,
        reply: bytes | None,
    ) -> tuple[bytes | None, AdmittedPlacement]:
        """Run a read with the complete filter; return its reply and the placement used.

        A reply without the filter is the result, unless it leaves open a cursor that needs the filter.
        """
        table = placement.table
        assert table is not None
        if reply is not None and not has_more(reply, lambda: results_max_of(request, table.key_pattern)):
            return reply, placement
        unowned = state.unowned if state.table is table else unowned_filter(table, state.shard)
        if unowned is None or not may_match(request, unowned):
            return reply or await self._run_admitted(exchange, state, placement, request), placement
        if reply is not None:
            await in_own_task()
            await close_cursor(self._context.mongod, Namespace.parse(state.namespace), response_body(reply))
        filtered = placement._replace(orphans=unowned)
        return await self._run_admitted(exchange, state, filtered, request), filtered

    @may_run_in_reactor
    async def _run_admitted(
        self, exchange: TermExchange, state: NamespaceState, placement: AdmittedPlacement, request: Request
    ) -> bytes | None:
        table, orphans = placement.table, placement.orphans
        if table is not None:
            if READ_CONCERN in request.fields and (time := snapshot_time(request)) is not None:
                await in_own_task()
                orphans = await ownership_at(self._shard.range_deletions, table, state.shard, time)
            if orphans is not None:
                run = partial(self._run_without_orphans, exchange, state, placement, orphans, request)
                return await without_filter_in_errors(self._context.mongod, request, run)
        return await self._run_filtered(exchange, state, placement, request)

    @may_run_in_reactor
    async def _run_without_orphans(
        self,
        exchange: TermExchange,
        state: NamespaceState,
        placement: AdmittedPlacement,
        orphans: OwnershipFilter,
        request: Request,
    ) -> bytes | None:
        namespace = Namespace.parse(state.namespace)
        time_series = None if placement.table is None else placement.table.collection.time_series
        filtered = await without_orphans(request, self._context.mongod, namespace, orphans, time_series)
        if time_series is not None and filtered is not request and is_about_measurements(request):
            await in_own_task()
            return await CountedMeasurements(exchange, namespace, filtered, time_series).run()
        return await self._run_filtered(exchange, state, placement, filtered)

    @may_run_in_reactor
    async def _run_filtered(
        self, exchange: TermExchange, state: NamespaceState, placement: AdmittedPlacement, request: Request
    ) -> bytes | None:
        table = placement.table
        special = None if table is None else SHARDED_OPERATIONS.get(request.name)
        if table is not None and special is not None:
            mongod, previews = self._context.mongod, self._shard.previews
            reply = await special(
                ShardedOperation(mongod, previews, exchange, request, state, table, placement.mutable_key)
            )
            if reply is not None:
                await exchange.confirm()
                return reply
        return await exchange.run(request)
