"""Execution of write batches: routing, sending, and resending of statements that shards refused as stale."""

from collections.abc import Collection, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from shardwright.router.operations.operation import Operation, PassedOn
from shardwright.router.operations.scatter import scatter
from shardwright.router.operations.would_change_owning_shard import (
    CHANGED_OWNER_FIELDS,
    OwnerRefusedError,
    OwnerWouldChangeError,
    execute_in_transaction,
    failed_update,
    insert_with_new_owner,
    may_change_owner,
    raise_if_refused,
    refuse_or_move,
    update_by_replacement,
)
from shardwright.router.pipelines.stages import check_update_stages
from shardwright.router.placement.routing_info import CollectionRouting
from shardwright.router.replies.reply_builder import Reply
from shardwright.router.replies.shard_reply import INTERNAL_REPLY_FIELDS, ShardReply
from shardwright.router.transactions.internal_transaction import own_session
from shardwright.router.writes.batch import WriteBatch, WriteKind
from shardwright.router.writes.outcome import CLIENT_HIDDEN_FIELDS, WriteReply, move_refused
from shardwright.router.writes.run import WriteRun, is_routing_refusal
from shardwright.router.writes.targeted_batch import (
    ShardBatch,
    broadcast_elements,
    message_with_versions,
    shard_message,
    target_batch,
)
from shardwright.sharding.targeting.writes import Destinations
from shardwright.sharding.transaction_protocol import (
    CHANGED_OWNER,
    CLIENT_SESSION,
    MAY_CHANGE_OWNER_ELEMENT,
    client_session_element,
)
from shardwright.wire.error_codes import Category, ErrorCode, has_category
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg
from shardwright.wire.rawbson import InvalidBSONError, decode_document, index
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.sharding.routing_table import RoutingTable

_CLIENT_SESSION: Final = CLIENT_SESSION.decode()
_WRITE_ERRORS: Final = b"writeErrors"

HIDDEN_FIELDS: Final = INTERNAL_REPLY_FIELDS | CLIENT_HIDDEN_FIELDS
"""Fields that are removed from a shard's reply to a write before it is forwarded."""


@may_run_in_reactor
async def execute(operation: Operation, kind: WriteKind) -> Reply:
    """Run an insert, update or delete command and return the reply.

    If all statements target one shard, the client's message and the shard's reply are forwarded unchanged.

    Raises:
        CommandError: the command is malformed; the database cannot be created; every shard of the first round failed
            as a whole. If the command can be retried, the failure of any shard is raised, too. Other failures are
            reported for each statement.
    """
    try:
        check_update_stages(operation.request)
        batch = WriteBatch(kind, operation.request)
        reply = await _Execution(operation, batch).run()
        operation.context.statement_counts[kind] += _executed_count(batch, reply)
        return reply
    except OwnerWouldChangeError:
        await in_own_task()
        return await execute_in_transaction(operation, lambda part: execute(part, kind))
    except OwnerRefusedError as refused:
        await in_own_task()
        return await update_by_replacement(operation, refused.change)
    except InvalidBSONError as error:
        raise CommandError(ErrorCode.InvalidBSON, str(error)) from error


class _Execution:
    """A batch in progress."""

    def __init__(self, operation: Operation, batch: WriteBatch) -> None:
        self._operation = operation
        self._sender = operation.sender
        self._routing = operation.context.routing
        self._shards = operation.context.shards
        self._clock = operation.context.clock
        self._namespace = operation.namespace
        self._batch = batch
        self._destinations: Destinations | None = None
        self._has_checked_errors = False
        self._placement: RoutingTable | None = None
        self._refusal: CommandError | None = None
        self._may_change_owner = False
        self._operation_time = 0
        self._client_session = b""
        self._borrowed: ExitStack

    @may_run_in_reactor
    async def run(self) -> Reply:
        routing = await self._route()
        if self._operation.transaction is not None and self._batch.kind is WriteKind.UPDATE:
            self._may_change_owner = await may_change_owner(self._operation, routing)
        shard = self._only_shard(routing)
        if shard is None:
            return await self._finish(WriteRun(self._batch), routing)
        self._operation.targeted = (shard,)
        message = message_with_versions(
            self._batch.request.message, self._versions(shard, routing), body=self._batch.body
        )
        try:
            reply = await self._sender.send(shard, message, may_repeat=self._batch.is_retryable)
        except CommandError as error:
            if not is_routing_refusal(error.code):
                raise
            reply = ShardReply.failed(shard, error)
        # A passage may have sent the request, when all owners could still hand over documents.
        if self._operation.transaction is not None and reply.has(CHANGED_OWNER):
            await in_own_task()
            return await self._with_new_owner(reply)
        if _can_pass(reply):
            if self._batch.is_unacknowledged:
                return {}
            if self._batch.body is self._batch.request.body:
                elements = MAY_CHANGE_OWNER_ELEMENT if self._may_change_owner else b""
                self._operation.passed_on = PassedOn(routing, shard, self._batch.kind, elements=elements)
            return reply.for_client(HIDDEN_FIELDS)
        run = WriteRun(self._batch)
        self._record(run, run.whole_round(shard), reply)
        run.end_round(self._namespace, ())
        return await self._finish(run, routing)

    @may_run_in_reactor
    async def _finish(self, run: WriteRun, routing: CollectionRouting) -> Reply:
        """Run rounds until every statement has succeeded or failed."""
        with ExitStack() as self._borrowed:
            return await self._run_rounds(run, routing)

    @may_run_in_reactor
    async def _run_rounds(self, run: WriteRun, routing: CollectionRouting) -> Reply:
        targeted = dict.fromkeys(self._operation.targeted)
        while not run.is_finished:
            if run.refusals:
                self._invalidate(routing, run.refusals)
                try:
                    routing = await self._route()
                except CommandError as error:
                    if not run.settled:
                        raise
                    run.fail_rest(error)
                    break
            routing = await self._round(run, routing)
            targeted.update(dict.fromkeys(self._operation.targeted))
        self._operation.targeted = tuple(targeted)
        if self._operation.transaction is None:
            self._operation.operation_time = self._operation_time
        return run.reply()

    @may_run_in_reactor
    async def _round(self, run: WriteRun, routing: CollectionRouting) -> CollectionRouting:
        """Send the statements of one round and record the replies; return the routing to continue with."""
        destinations = self._targets(routing)
        was_broadcast = run.has_broadcasts
        try:
            all_shards = await self._all_shards(routing) if destinations.has_broadcasts or was_broadcast else ()
        except CommandError as error:
            if not run.settled and not was_broadcast:
                raise
            run.fail_rest(error)
            return routing
        if destinations.has_broadcasts:
            self._remember_broadcasts()
        if not run.has_pending_broadcasts:
            self._placement = routing.table
        parts = {part.shard: part for part in run.next_round(destinations.by_statement, all_shards)}
        messages = {
            shard: shard_message(self._batch, part, self._elements_for(part, routing)) for shard, part in parts.items()
        }
        replies = await self._send(messages)
        if not run.settled and not was_broadcast:
            _raise_if_refused_as_a_whole(replies)
        for reply in replies:
            if self._may_change_owner and reply.has(CHANGED_OWNER):
                await in_own_task()
                await insert_with_new_owner(self._operation, reply)
            self._record(run, parts[reply.shard_id], reply)
        if self._operation.transaction is None and any(part.is_broadcast for part in parts.values()):
            # A shard added since then may have received unchanged documents from a shard that had not executed the
            # statement yet.
            try:
                all_shards = await self._shards.ids_as_told()
            except CommandError as error:
                run.record_missed_shards(error)
            if run.may_have_missed(all_shards):
                routing = await self._repeat_if_placement_changed(run, routing)
        run.end_round(self._namespace, all_shards)
        return routing

    def _remember_broadcasts(self) -> None:
        """Number broadcast statements, so that a concurrent migration does not make a shard execute one twice."""
        batch = self._batch
        if not batch.own_session and self._operation.transaction is None and batch.may_be_remembered:
            batch.own_session = self._borrowed.enter_context(self._operation.context.write_sessions.borrowed())
            lsid = self._operation.request.raw_object(b"lsid")
            self._client_session = b"" if lsid is None else client_session_element(own_session(lsid))

    def _elements_for(self, part: ShardBatch, routing: CollectionRouting) -> bytes:
        """Return the version elements for a shard's statements; broadcasts have other elements instead."""
        if part.is_broadcast and self._operation.transaction is None:
            elements = broadcast_elements(self._shards.topology_time, self._clock.time.config_time)
            is_told = self._client_session and self._shards.is_understood(part.shard, _CLIENT_SESSION, PRIMARY)
            return elements + self._client_session if is_told else elements
        return self._versions(part.shard, routing)

    def _versions(self, shard: str, routing: CollectionRouting) -> bytes:
        versions = routing.versions_for(shard)
        return versions + MAY_CHANGE_OWNER_ELEMENT if self._may_change_owner else versions

    async def _with_new_owner(self, reply: ShardReply) -> Reply:
        """Return the reply to the client's only statement, whose document now belongs to another shard."""
        try:
            await insert_with_new_owner(self._operation, reply)
        except CommandError as error:
            failed = failed_update(error)
            if failed is None:
                raise
            return failed
        return reply.for_client(HIDDEN_FIELDS | CHANGED_OWNER_FIELDS)

    @may_run_in_reactor
    async def _all_shards(self, routing: CollectionRouting) -> Collection[str]:
        """Return the shards for a broadcast.

        In a transaction these are the owners, with versions: a concurrent migration makes the broadcast fail.
        """
        return await self._shards.ids_as_told() if self._operation.transaction is None else routing.shards

    @may_run_in_reactor
    async def _send(self, messages: Mapping[str, bytes]) -> list[ShardReply]:
        """Send the messages of a round; return the replies.

        A single message, typical of ordered batches, is sent without a task, which would cost as much as a write of one
        document.
        """
        may_repeat = self._batch.is_retryable
        if len(messages) != 1:
            return await scatter(self._operation, messages, may_repeat=may_repeat)
        ((shard, message),) = messages.items()
        self._operation.targeted = (shard,)
        try:
            return [await self._sender.send(shard, message, may_repeat=may_repeat)]
        except CommandError as error:
            return [ShardReply.failed(shard, error)]

    @may_run_in_reactor
    async def _repeat_if_placement_changed(self, run: WriteRun, routing: CollectionRouting) -> CollectionRouting:
        """Resend broadcasts if documents may have moved since; return the current routing."""
        fresh = await self._routing.latest_if_readable(routing)
        if fresh.table is not self._placement:
            run.repeat_broadcasts()
            self._placement = fresh.table
        if fresh is not routing:
            self._operation.retries += 1
            self._destinations = None
        return fresh

    def _record(self, run: WriteRun, part: ShardBatch, reply: ShardReply) -> None:
        """Record a shard's reply.

        Raises:
            CommandError: the shard cannot be reached or its primary stepped down, and the client will retry the
                batch. Drivers check only the top level of a reply, where a mongod that steps down reports the error for
                one statement. Statements that were executed are not executed twice.
            OwnerRefusedError: the router must move the document of the only statement.
        """
        self._operation_time = max(self._operation_time, reply.operation_time)
        if reply.error is not None:
            if part.is_broadcast and not is_routing_refusal(reply.error.code):
                self._borrowed.pop_all()  # the shard may still be executing it
            self._raise_if_repeatable(reply.error)
            self._raise_if_owner_changes(reply)
            self._raise_in_transaction(reply.error)
            run.record_failure(part, reply.error)
            return
        written = WriteReply.read(reply.body, reply.fields)
        for each in written.errors:
            if has_category(each.code, Category.NOT_PRIMARY):
                self._raise_if_repeatable(CommandError.from_reply(decode_document(each.document)))
            elif each.code == ErrorCode.WouldChangeOwningShard and self._batch.statement_count == 1:
                refuse_or_move(self._operation, move_refused(1))
            elif is_routing_refusal(each.code):
                refusal = CommandError.from_reply(decode_document(each.document))
                if self._routing.note_time_series(self._namespace, refusal):
                    written = replace(written, n=0)  # genuine shards count measurements that they have refused
                self._raise_in_transaction(refusal)
        run.record(part, written)

    def _raise_if_repeatable(self, error: CommandError) -> None:
        if self._batch.is_retryable and has_category(error.code, Category.RETRYABLE):
            raise error

    def _raise_if_owner_changes(self, reply: ShardReply) -> None:
        """Raise the error that makes the router move the only statement's document, if a genuine shard requires it."""
        assert reply.error is not None
        if reply.error.code != ErrorCode.WouldChangeOwningShard or self._batch.statement_count > 1:
            return
        if self._operation.transaction is None:
            refuse_or_move(self._operation, move_refused(1))
        raise_if_refused(reply)

    def _raise_in_transaction(self, error: CommandError) -> None:
        """Raise an error that aborts the whole transaction; keep a stale-routing error for a possible restart."""
        if self._operation.transaction is None:
            return
        if error.code == ErrorCode.WouldChangeOwningShard:
            raise move_refused(self._batch.statement_count)
        if not is_routing_refusal(error.code):
            raise error
        self._refusal = error

    def _only_shard(self, routing: CollectionRouting) -> str | None:
        """Return the shard that the client's message can be forwarded to unchanged, if any."""
        if not self._batch.fits_with_versions:
            return None
        if routing.table is None:
            return routing.primary
        destinations = self._targets(routing).by_statement
        first = destinations[0]
        if self._batch.has_own_statements or not isinstance(first, str):
            return None
        return first if destinations.count(first) == len(destinations) else None

    @may_run_in_reactor
    async def _route(self) -> CollectionRouting:
        """Return the routing of the collection, refreshed once if statements cannot be targeted by the cached one.

        Such a statement may be valid for the current collection, which may have been dropped and sharded by another key
        since the last refresh.
        """
        routing = await self._read_routing()
        self._destinations = None
        if routing.table is not None and not self._has_checked_errors and self._targets(routing).has_errors:
            self._has_checked_errors = True
            if self._routing.collections.get(routing.namespace) is routing:
                self._routing.forget_collection(routing.namespace)
            self._destinations = None
            routing = await self._read_routing()
        return routing

    @may_run_in_reactor
    async def _read_routing(self) -> CollectionRouting:
        cache, namespace = self._routing, self._namespace
        if self._operation.begun_routing is not None:
            routing = self._operation.routing_of(namespace)
            assert routing is not None
            self._operation.table = routing.table
            return routing
        buckets = await cache.sharded_buckets(namespace) if namespace in cache.time_series else None
        self._batch.address_buckets(is_on_buckets=buckets is not None)
        routing = buckets or cache.collections.get(namespace)
        if routing is None:
            self._operation.awaited_routing = True
            routing = await cache.collection(namespace, create_database=True)
        self._operation.table = routing.table
        return routing

    def _targets(self, routing: CollectionRouting) -> Destinations:
        if self._destinations is None:
            self._destinations = target_batch(self._batch, routing.table, routing.primary)
            self._operation.context.target_counts.updates_by_id += self._destinations.updates_by_id
        return self._destinations

    def _invalidate(self, routing: CollectionRouting, refusals: set[int]) -> None:
        """Invalidate refused routing; in a transaction that cannot restart, raise the refusal."""
        if ErrorCode.StaleDbVersion in refusals:
            self._routing.invalidate_database(routing.database)
        self._routing.invalidate(routing)
        if self._refusal is None:
            self._operation.retries += 1
        else:
            self._operation.begin_again(self._refusal)


def _executed_count(batch: WriteBatch, reply: Reply) -> int:
    """Number of executed statements: an ordered batch ends with its first error."""
    failed = _first_failed(reply) if batch.is_ordered else None
    return batch.statement_count if failed is None else failed + 1


def _first_failed(reply: Reply) -> int | None:
    """Index of the first statement that failed."""
    if isinstance(reply, bytes):
        if _WRITE_ERRORS not in reply:
            return None
        body = OpMsg(reply).body
        errors = WriteReply.read(body, index(body)).errors
        return errors[0].index if errors else None
    failures = (reply or {}).get(_WRITE_ERRORS.decode())
    return int(failures[0]["index"]) if failures else None


def _can_pass(reply: ShardReply) -> bool:
    """Whether a shard's reply to the whole batch can be forwarded to the client."""
    if reply.error is not None:
        return not _is_for_router(reply.error.code)
    if reply.has(b"writeConcernError"):
        return False
    if not reply.has(_WRITE_ERRORS):
        return True
    errors = WriteReply.read(reply.body, reply.fields).errors
    return not any(_is_for_router(each.code) or has_category(each.code, Category.NOT_PRIMARY) for each in errors)


def _raise_if_refused_as_a_whole(replies: list[ShardReply]) -> None:
    """Fail the command as a single server would, if every shard refused it as a whole, for example for an argument."""
    errors = [reply.error for reply in replies if reply.error is not None and not _is_for_router(reply.error.code)]
    if errors and len(errors) == len(replies):
        raise errors[0]


def _is_for_router(code: int) -> bool:
    return code == ErrorCode.WouldChangeOwningShard or is_routing_refusal(code)
