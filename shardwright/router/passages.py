"""The router's passages: operations from the client's frame to the frames of the shards and back.

Handlers mark an operation that they merely passed on (`Operation.passed_on`). `RouterPassages.learn` then keeps where
the deciding values are in the frame: the shard key, the session, the cluster time. A passage does everything that the
ordinary path does for each such operation. It leaves the rare cases to the ordinary path.

Most passages serve operations on one shard. A find without the shard key goes to all shards of its collection. Its
passage merges their replies, if every shard's result is complete and the merged result fits the first batch.

Under access control a passage belongs to one user with the same privileges (`AuthorizedUser.permit`). All later steps
use the frame after its admission, as on the ordinary path.
"""

import math
from bisect import bisect_left
from functools import partial
from time import monotonic, perf_counter, time
from typing import TYPE_CHECKING, Final

from shardwright.daemon.audit_events import is_event
from shardwright.daemon.operation_metrics import BUCKET_BOUNDS_SECONDS, OK
from shardwright.router.access.authorized_user import FrameAdmission
from shardwright.router.batch_passages import AnyPassage
from shardwright.router.context.router_context import RouterContext
from shardwright.router.exec.shard import ShardStage
from shardwright.router.operations.begun_operation import (
    BegunBatch,
    BegunMerge,
    BegunOperation,
    BegunStatement,
)
from shardwright.router.operations.cursor_opening import forward_opening
from shardwright.router.operations.listed_collection import COLLECTION_UUID
from shardwright.router.operations.operation import ContinuedOn, Merged, Operation, PassedOn, RouterCommand
from shardwright.router.operations.write_execution import HIDDEN_FIELDS
from shardwright.router.passage import RouterGetMorePassage, RouterPassage, body_change_of
from shardwright.router.passage_layout import PassageLayout, merged_whole_results, names_no_field_of
from shardwright.router.reads.find_arguments import is_immortal
from shardwright.router.replies.cursor_reply import FIRST_BATCH, cursor_pieces
from shardwright.router.replies.reply_builder import cluster_time_of_usual, operation_time_of_usual, raw_reply, signed
from shardwright.router.replies.shard_reply import ShardReply, short_for_client
from shardwright.router.statement_passages import StatementPassage, StatementPassages
from shardwright.router.transactions.router_transaction import Phase
from shardwright.router.transactions.transaction_sender import in_transaction
from shardwright.router.writes.targeted_batch import message_with_versions
from shardwright.sharding.clock import with_cluster_time
from shardwright.sharding.passage_fields import KeyInQuery
from shardwright.sharding.targeting.values import effective, is_simple
from shardwright.sharding.transaction_protocol import AUTOCOMMIT, CHANGED_OWNER, START_TRANSACTION, take_read_only
from shardwright.wire.cursor_batch import end_of_whole_result, first_id_at, is_whole_result_frame
from shardwright.wire.message import BODY_AT
from shardwright.wire.passages import EPOCH, Outcome
from shardwright.wire.rawbson import InvalidBSONError
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.transport.client import Begun, Connection
from shardwright.wire.transport.client_connection import ClientConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.router.access.authorized_user import AuthorizedUser
    from shardwright.wire.transport.pool import Pool

_OK_CODE: Final = 0

LEFT_ALONE: Final = frozenset({START_TRANSACTION, COLLECTION_UUID, b"help"})
"""Fields of requests that no passage serves."""

_MERGED_SHARDS_MAX: Final = 64
"""Maximum number of shards of a merge, because their replies must fit into one batch."""

_FOR_ORDINARY_PATH: Final = HIDDEN_FIELDS | {b"writeErrors", b"writeConcernError", CHANGED_OWNER}
"""Fields in the reply to a write that the router has to evaluate or remove."""


def _adopted(begun: BegunOperation, reply: bytes) -> bytes | None:
    """Keep the cursor that a find has opened, as `forward_opening`; None if the reply is not as mongod writes it."""
    if not first_id_at(reply):
        return None
    operation = begun.operation
    stage = ShardStage(operation.sender, ShardReply(begun.shard_id, begun.pool.address, reply))
    return forward_opening(operation, stage, is_immortal=is_immortal(operation.request))


class RouterPassages(StatementPassages):
    """The passages of a router."""

    def __init__(self, context: RouterContext, *, is_audited: bool) -> None:
        super().__init__(context)
        self._is_audited = is_audited

    def _begin(self, passage: AnyPassage, client: ClientConnection, received: bytes) -> BegunOperation | None:
        if isinstance(passage, RouterGetMorePassage):
            return self._begin_batch(passage, client, received)
        started = perf_counter()
        context, common, admission = self._context, passage.common, passage.admission
        frame, document = received, passage.document_in_body
        if document is not None:
            frame = document.moved_to_end(frame)
        if admission is not None:
            user: AuthorizedUser | None = client.login.admitted
            if user is None or monotonic() >= user.good_until:
                return None
            frame = admission.of_frame(frame)
        routing = passage.passed_on.routing
        if context.routing.collections.get(routing.namespace) is not routing or client.is_disconnected:
            return None
        merged = passage.passed_on.merged
        if merged is not None:
            return self._begin_merge(passage, merged, client, received, frame, started)
        shard_id = passage.shard_of(frame)
        shard = None if shard_id is None else context.shards.get_known(shard_id)
        if shard_id is None or shard is None or (common.number_at and frame[common.number_at + 7] > 0x7F):
            return None
        address = shard.client.monitor.select(passage.passed_on.preference)
        if isinstance(passage, StatementPassage):
            return self._begin_statement(passage, client, received, frame, started, shard_id, address)
        request = None if address is None else passage.request_for(shard_id, frame, context.clock)
        if address is None or request is None:
            return None
        if common.lsid is not None and not context.sessions.use_again(frame[slice(*common.lsid)], time()):
            return None
        pool = context.pools[address]
        connection = pool.lend_quiet()
        if connection is None:
            return None
        client.is_interruptible = passage.is_read
        if passage.seconds:
            context.deadlines.set(client, passage.seconds)
        client.state = begun = BegunOperation(
            context,
            client,
            received,
            started,
            routing,
            shard_id,
            pool,
            connection,
            request,
            passage,
            None if admission is None else admission.of_request,
        )
        return begun

    def _begin_merge(
        self,
        passage: RouterPassage,
        merged: Merged,
        client: ClientConnection,
        received: bytes,
        frame: bytes,
        started: float,
    ) -> BegunMerge | None:
        """Begin a find on all shards of its collection; the admitted frame is ``frame``."""
        context, common, admission = self._context, passage.common, passage.admission
        if common.time_at and context.clock.compare(frame, common.time_at) > 0:
            return None
        if common.lsid is not None and not context.sessions.use_again(frame[slice(*common.lsid)], time()):
            return None
        shards: list[tuple[str, Pool]] = []
        connections: list[Connection] = []
        for shard_id in merged.shards:
            shard = context.shards.get_known(shard_id)
            address = None if shard is None else shard.client.monitor.select(passage.passed_on.preference)
            pool = None if address is None else context.pools[address]
            connection = None if pool is None else pool.lend_quiet()
            if pool is None or connection is None:
                for (_, lender), each in zip(shards, connections, strict=True):
                    lender.give_back(each)
                return None
            shards.append((shard_id, pool))
            connections.append(connection)
        routing = passage.passed_on.routing
        share = merged.arguments.share(routing.limit_shares, len(shards))
        frame = passage.for_shards(frame, share)
        posted = []
        for (shard_id, _), connection in zip(shards, connections, strict=True):
            request = passage.request_for(shard_id, frame, context.clock)
            assert request is not None, "its cluster time was compared"
            posted.append((connection, request))
        client.is_interruptible = True
        if passage.seconds:
            context.deadlines.set(client, passage.seconds)
        client.state = begun = BegunMerge(
            context,
            client,
            received,
            started,
            routing,
            shards,
            posted,
            share,
            passage,
            None if admission is None else admission.of_request,
        )
        return begun

    def finish(self, client: ClientConnection, begun: Begun, reply: bytes) -> bytes | None:
        """Finish an operation, see `Passages`."""
        assert isinstance(begun, BegunOperation)
        passage, context = begun.passage, self._context
        if isinstance(begun, BegunBatch):
            return self._finish_batch(client, begun, reply)
        assert isinstance(passage, RouterPassage)
        if begun.answered:
            return self._finish_merge(client, passage, begun, reply)
        received_bytes, statement, is_read_only = len(reply), None, False
        if isinstance(begun, BegunStatement):
            statement, taken = begun, take_read_only(reply)
            if taken is None or begun.transaction.phase is not Phase.IN_PROGRESS:
                return None
            reply, is_read_only = taken
        cluster_time = cluster_time_of_usual(reply)
        seconds = perf_counter() - begun.started
        answer: bytes | None = None
        if cluster_time and seconds * 1000 < context.slow_operations.considered_ms:
            if not passage.is_read:
                answer = short_for_client(reply, _FOR_ORDINARY_PATH)
            elif is_whole_result_frame(reply):
                answer = reply
            elif statement is None:
                answer = _adopted(begun, reply)
        if answer is None:
            return None
        if statement is not None:
            answer = self._end_statement(statement, answer, is_read_only=is_read_only)
        context.clock.observe_cluster_time(cluster_time)
        frame = signed(answer, context.signer)
        client.state = None
        client.deadline = math.inf
        kind = passage.passed_on.kind
        if kind is not None:
            context.statement_counts[kind] += 1
        if passage.target_counts is not None:
            counts, part = passage.target_counts
            counts[part] += 1
        bucket = self._observe_on(begun.shard_id, passage.command, seconds, len(begun.frame), received_bytes)
        self._count_shape(passage, bucket, seconds, answer)
        self._outcomes[Outcome.TAKEN] += 1
        begun.pool.give_back(begun.connection)
        if statement is not None:  # last, because after an error the transaction is aborted in its session
            statement.session.check_in()
        return frame

    def _finish_merge(
        self, client: ClientConnection, passage: RouterPassage, begun: BegunOperation, reply: bytes
    ) -> bytes | None:
        """Finish a find on several shards with the last reply."""
        assert isinstance(begun, BegunMerge)
        context, merged = self._context, passage.passed_on.merged
        assert merged is not None
        replies = [*[each for _, _, each in begun.answered], reply]
        cluster_times = [cluster_time_of_usual(each) for each in replies]
        seconds = perf_counter() - begun.started
        if not all(cluster_times) or seconds * 1000 >= context.slow_operations.considered_ms:
            return None
        namespace = passage.passed_on.routing.namespace
        documents = merged_whole_results(merged.arguments, merged.order, begun.share, replies, namespace)
        if documents is None:
            return None
        context.clock.observe_cluster_time(max(cluster_times))
        pieces = cursor_pieces(FIRST_BATCH, documents, end_of_whole_result(namespace))
        request_id = int.from_bytes(begun.request_frame[4:8], "little", signed=True)
        answer = raw_reply(request_id, pieces, context.clock, max(map(operation_time_of_usual, replies)))
        client.state = None
        client.deadline = math.inf
        if passage.target_counts is not None:
            counts, part = passage.target_counts
            counts[part] += 1
        for (shard_id, _), (_, request), each in zip(begun.shards, begun.posted, replies, strict=True):
            context.shard_counts.note_success(shard_id, seconds, len(request), len(each))
        context.metrics.operations.observe(passage.command, OK, seconds)
        bucket = bisect_left(BUCKET_BOUNDS_SECONDS, seconds)
        self._count_shape(passage, bucket, seconds, answer, shards=len(replies))
        self._outcomes[Outcome.TAKEN] += 1
        begun.give_back()
        return signed(answer, context.signer)

    def may_learn(self, fields: frozenset[bytes]) -> bool:
        """Whether passages cover everything done for operations with these fields under the current settings."""
        context = self._context
        return (
            context.parameters.uses_passages
            and context.signing_keys.are_read
            and fields.isdisjoint(LEFT_ALONE)
            and not context.default_concerns.is_any_set
            and not context.fail_points.is_any_on
            and not context.parameters.requires_api_version
            and not (AUTOCOMMIT in fields and context.options.worker_sockets)
        )

    def learn(self, operation: Operation, entry: RouterCommand, passed_on: PassedOn | ContinuedOn) -> None:
        """Keep a passage for an operation that was only passed on; `may_learn` has allowed its fields."""
        if isinstance(passed_on, ContinuedOn):
            self._learn_batches(operation, passed_on)
            return
        context, request = self._context, operation.origin
        frame, message = request.message.frame, request.message
        permit = operation.client.permit
        if (
            permit is None
            or operation.epoch != EPOCH.number
            or (context.access is None and request is not operation.request)
            or (self._is_audited and is_event(request, entry.name, _OK_CODE))
            or operation.retries
            or not self._may_learn_in(operation.transaction, operation.request, passed_on)
            or message.flags
            or frame[BODY_AT - 1]
            or self._is_known(frame, permit, passed_on)
            or not self._table.is_wanted(frame, permit)
        ):
            return
        try:
            passage = self._passage_of(operation, entry, passed_on)
        except InvalidBSONError:
            return
        if passage is None or not passage.is_of(frame):
            return
        admission, message, body = passage.admission, operation.request.message, operation.request.body
        document = passage.document_in_body
        sent = frame if document is None else document.moved_to_end(frame)
        sent = sent if admission is None else admission.of_frame(sent)
        if at := passage.common.time_at:  # the clock may have advanced since the request was sent
            now = context.clock.packed_cluster_time
            sent = b"".join((sent[:at], now, sent[at + 8 :]))
            if document is not None:
                [(at, _)] = document.places_in(frame, [(at, at)])
            body = b"".join((body[: at - BODY_AT], now, body[at + 8 - BODY_AT :]))
        merged, transaction = passed_on.merged, operation.transaction
        if merged is None and passage.shard_of(sent) != passed_on.shard_id:
            return
        if merged is not None:
            sent, body = passage.for_shards(sent, merged.share), merged.body_for_shards(body)
        for shard_id in (passed_on.shard_id,) if merged is None else merged.shards:
            elements = passed_on.routing.versions_for(shard_id) + passed_on.elements
            ordinary = message_with_versions(message, elements, body)
            if transaction is not None and isinstance(passage, StatementPassage):
                ordinary = in_transaction(ordinary, transaction.own_elements)
                built = passage.request_in(transaction, shard_id, sent, context.clock)
            else:
                built = passage.request_for(shard_id, sent, context.clock)
            if built != with_cluster_time(ordinary, context.clock):
                return
        self._outcomes[Outcome.LEARNED] += 1
        self._table.add(frame, permit, passage)

    def _is_known(self, frame: bytes, permit: bytes, passed_on: PassedOn) -> bool:
        """Whether a valid passage exists that was declined only this time, for example because of a new session."""
        known = self._table.find(frame, permit)
        return (
            isinstance(known, RouterPassage)
            and known.passed_on.routing is passed_on.routing
            and known.passed_on.elements == passed_on.elements
        )

    def _passage_of(self, operation: Operation, entry: RouterCommand, passed_on: PassedOn) -> RouterPassage | None:
        """Build the passage of an operation; None if its frame has values in unexpected places.

        Raises:
            InvalidBSONError: a part that was passed on unread is not well-formed.
        """
        received, admitted = operation.origin, operation.request
        layout = PassageLayout.of(received, passed_on.kind)
        admission, places = None, layout
        if layout is not None and self._context.access is not None:
            user: AuthorizedUser | None = operation.client.login.admitted
            if user is None:
                return None
            admission = FrameAdmission(user, layout.request, may_write=entry.supports_write_concern)
            places = PassageLayout.of(admitted, passed_on.kind)
        if layout is None or places is None:
            return None
        table, key, query_at = passed_on.routing.table, None, places.query_at
        merged, limit, change = passed_on.merged, places.request.fields.get(b"limit"), None
        if merged is not None:
            assert table is not None
            assert query_at is not None
            paths = [each.path for each in table.key_pattern.fields]
            is_for_all = names_no_field_of(paths, places.request.message.frame, query_at)
            is_small = 1 < len(merged.shards) <= _MERGED_SHARDS_MAX
            if not (is_for_all and is_small and set(merged.shards) == table.shards):
                return None
            if not merged.arguments.is_sent_unchanged(has_sort_keys=merged.has_sort_keys):
                change = body_change_of(places.request, merged.body_for_shards(places.request.body))
        elif table is not None and query_at is not None:
            is_compared_simply = is_simple(effective(places.collation, table.collection.default_collation))
            key = KeyInQuery.find(
                places.request.message.frame, query_at, table.key_pattern, is_simple=is_compared_simply
            )
            if key is None:
                return None
        new: Callable[..., RouterPassage] = RouterPassage
        if operation.transaction is not None:
            session = self._session_of(admitted, places)
            if session is None:
                return None
            passed_on = passed_on._replace(preference=PRIMARY)
            new = partial(StatementPassage, request=places.request, session=session)
        return new(
            received.message.frame,
            layout.free,
            operation.epoch,
            layout.document,
            admission=admission,
            command=entry.name,
            is_read=entry.reads,
            passed_on=passed_on,
            common=places.common,
            key=key,
            change=change,
            limit_at=None if limit is None else (BODY_AT + limit[2], BODY_AT + limit[3]),
            body_end=BODY_AT + len(places.request.body),
            seconds=operation.max_time_ms / 1000,
            target_counts=self._context.target_counts.series(entry.name, operation.targeted, table),
            shape_counts=self._context.query_shapes.of(received),
        )
