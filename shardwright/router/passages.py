"""The router's passages: operations on one shard, from the client's frame to the shard's and back.

Handlers mark an operation that they merely passed on (`Operation.passed_on`). `RouterPassages.learn` then keeps where
the deciding values are in the frame: the shard key, the session, the cluster time. A passage does everything that the
ordinary path does for each such operation. It leaves the rare cases to the ordinary path.

Under access control a passage belongs to one user with the same privileges (`AuthorizedUser.permit`). All later steps
use the frame after its admission, as on the ordinary path.
"""

import math
from time import monotonic, perf_counter, time
from typing import TYPE_CHECKING, Final

from shardwright.daemon.audit.events import is_event
from shardwright.daemon.passages import DaemonPassages
from shardwright.router.access.authorized_user import FrameAdmission
from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.begun_operation import BegunOperation
from shardwright.router.operations.listed_collection import COLLECTION_UUID
from shardwright.router.operations.operation import Operation, PassedOn
from shardwright.router.operations.router_command import RouterCommand
from shardwright.router.operations.write_execution import HIDDEN_FIELDS
from shardwright.router.passage_layout import PassageLayout
from shardwright.router.replies.reply_tail import cluster_time_of_usual, signed
from shardwright.router.replies.shard_reply import short_for_client
from shardwright.router.writes.messages import message_with_versions
from shardwright.sharding.clock import VectorClock, with_cluster_time
from shardwright.sharding.operation_session import AUTOCOMMIT
from shardwright.sharding.owner_changes import CHANGED_OWNER
from shardwright.sharding.passage_fields import CommonFields, KeyInQuery
from shardwright.sharding.targeting.collation import effective, is_simple
from shardwright.wire.cursor_batch import is_whole_result_frame
from shardwright.wire.errors import CommandError
from shardwright.wire.message import BODY_AT
from shardwright.wire.passages import AFTER_ID, EPOCH, OUTCOMES, InsertedDocument, Outcome, Passage, Range
from shardwright.wire.rawbson import InvalidBSONError
from shardwright.wire.transport.client import Begun
from shardwright.wire.transport.client_connection import ClientConnection

if TYPE_CHECKING:
    from shardwright.router.access.authorized_user import AuthorizedUser
    from shardwright.sharding.routing_table import RoutingTable

_OK_CODE: Final = 0

LEFT_ALONE: Final = frozenset({AUTOCOMMIT, COLLECTION_UUID, b"help"})
"""Fields of requests that no passage serves."""

_FOR_ORDINARY_WAY: Final = HIDDEN_FIELDS | {b"writeErrors", b"writeConcernError", CHANGED_OWNER}
"""Fields in the reply to a write that the router has to evaluate or remove."""


class RouterPassage(Passage):
    """A layout of requests that go to one shard.

    All places refer to frames after admission, with an inserted document moved to the end.

    Attributes:
        admission: the admission of its frames; None without access control.
        passed_on: its shard is fixed only if the collection is unsharded.
        document_in_body: the place of a document in the body, if there is one.
        key: the places of the shard key in the query; None for inserts and unsharded collections.
        body_end: the offset at which the body ends.
        seconds: the time limit; 0 for none.
        target_counts: as returned by `TargetCounts.series`.
    """

    __slots__ = (
        "_inserted_at",
        "admission",
        "body_end",
        "command",
        "common",
        "document_in_body",
        "is_read",
        "key",
        "needs_id",
        "passed_on",
        "seconds",
        "table",
        "target_counts",
    )

    def __init__(
        self,
        frame: bytes,
        free: list[Range],
        epoch: int,
        document: InsertedDocument | None,
        *,
        admission: FrameAdmission | None,
        command: str,
        is_read: bool,
        passed_on: PassedOn,
        common: CommonFields,
        key: KeyInQuery | None,
        body_end: int,
        seconds: float,
        target_counts: tuple[dict[str, int], str] | None,
    ) -> None:
        super().__init__(frame, free, epoch, document)
        self.admission = admission
        self.command = command
        self.is_read = is_read
        self.passed_on = passed_on
        self.table: RoutingTable | None = passed_on.routing.table
        self.common = common
        self.key = key
        self.body_end = body_end
        self.seconds = seconds
        self.target_counts = target_counts
        pattern = None if self.table is None else self.table.key_pattern
        self.document_in_body = document if document is not None and document.is_in_body else None
        self._inserted_at = 0
        if document is not None:
            self._inserted_at = body_end if document.is_in_body else document.at
            if admission is not None and not document.is_in_body:
                self._inserted_at += admission.added_bytes
        self.needs_id = pattern is not None and any(each.path[0] == b"_id" for each in pattern.fields)

    def shard_of(self, frame: bytes) -> str | None:
        """Return the shard that a frame goes to; None leaves the decision to the ordinary path."""
        table = self.table
        if table is None:
            return self.passed_on.shard_id
        try:
            if self.key is not None:
                key = self.key.bytes_in(frame)
            else:
                at = self._inserted_at
                if self.needs_id and not frame.startswith(b"_id\0", at + 5):
                    return None
                key = table.key_pattern.key_bytes_of_document(frame[at:])
                if key == table.key_pattern.global_max_bytes():
                    return None
        except (CommandError, InvalidBSONError):
            return None
        return table.shard_for_key(key)

    def request_for(self, shard_id: str, frame: bytes, clock: VectorClock) -> bytes | None:
        """Build the shard's frame; None if the client's cluster time is later than the router's."""
        elements = self.passed_on.routing.versions_for(shard_id)
        end, at = self.body_end, self.common.time_at
        if not at:
            body = frame[BODY_AT + 4 : end - 1]
            if not clock.is_told_in(frame, end if self.document_in_body is None else len(frame)):
                elements += clock.external_elements
        else:
            order = clock.compare(frame, at)
            if order > 0:
                return None
            if order == 0:
                body = frame[BODY_AT + 4 : end - 1]
            else:
                body = b"".join((frame[BODY_AT + 4 : at], clock.packed_cluster_time, frame[at + 8 : end - 1]))
        added = len(elements)
        request = b"".join(
            (
                (len(frame) + added).to_bytes(4, "little"),
                frame[4:8],
                AFTER_ID,
                (end - BODY_AT + added).to_bytes(4, "little"),
                body,
                elements,
                b"\0",
                frame[end:],
            )
        )
        document = self.document_in_body
        return request if document is None else document.moved_back(request, len(frame) - end)


class RouterPassages(DaemonPassages[RouterPassage]):
    """The passages of a router."""

    def __init__(self, context: RouterContext, *, is_audited: bool) -> None:
        super().__init__(
            context.metrics.labelled_counter(
                "passages", "Requests by whether a passage served them", "outcome", OUTCOMES
            )
        )
        self._context = context
        self._observe_on = context.metrics.operations.observe_on
        self._is_audited = is_audited

    def _begin(self, passage: RouterPassage, client: ClientConnection, received: bytes) -> BegunOperation | None:
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
        shard_id = passage.shard_of(frame)
        shard = None if shard_id is None else context.shards.get_known(shard_id)
        if shard_id is None or shard is None or (common.number_at and frame[common.number_at + 7] > 0x7F):
            return None
        address = shard.client.monitor.select(passage.passed_on.preference)
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

    def finish(self, client: ClientConnection, begun: Begun, reply: bytes) -> bytes | None:
        """Finish an operation, see `Passages`."""
        assert isinstance(begun, BegunOperation)
        passage, context = begun.passage, self._context
        assert isinstance(passage, RouterPassage)
        cluster_time = cluster_time_of_usual(reply)
        seconds = perf_counter() - begun.started
        answer: bytes | None = None
        if cluster_time and seconds * 1000 < context.slow_operations.considered_ms:
            if not passage.is_read:
                answer = short_for_client(reply, _FOR_ORDINARY_WAY)
            elif is_whole_result_frame(reply):
                answer = reply
        if answer is None:
            return None
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
        self._observe_on(begun.shard_id, passage.command, seconds, len(begun.frame), len(reply))
        self._outcomes[Outcome.TAKEN] += 1
        begun.pool.give_back(begun.connection)
        return frame

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
        )

    def learn(self, operation: Operation, entry: RouterCommand, passed_on: PassedOn) -> None:
        """Keep a passage for an operation that was only passed on; `may_learn` has allowed its fields."""
        context, request = self._context, operation.origin
        frame, message = request.message.frame, request.message
        permit = operation.client.permit
        if (
            permit is None
            or operation.epoch != EPOCH.number
            or (context.access is None and request is not operation.request)
            or (self._is_audited and is_event(request, entry.name, _OK_CODE))
            or operation.retries
            or operation.transaction is not None
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
        if passage.shard_of(sent) != passed_on.shard_id:
            return
        ordinary = message_with_versions(message, passed_on.routing.versions_for(passed_on.shard_id), body)
        if passage.request_for(passed_on.shard_id, sent, context.clock) != with_cluster_time(ordinary, context.clock):
            return
        self._outcomes[Outcome.LEARNED] += 1
        self._table.add(frame, permit, passage)

    def _is_known(self, frame: bytes, permit: bytes, passed_on: PassedOn) -> bool:
        """Whether a valid passage exists that was declined only this time, for example because of a new session."""
        known = self._table.find(frame, permit)
        return known is not None and known.passed_on.routing is passed_on.routing

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
        if table is not None and query_at is not None:
            is_compared_simply = is_simple(effective(places.collation, table.collection.default_collation))
            key = KeyInQuery.find(
                places.request.message.frame, query_at, table.key_pattern, is_simple=is_compared_simply
            )
            if key is None:
                return None
        return RouterPassage(
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
            body_end=BODY_AT + len(places.request.body),
            seconds=operation.max_time_ms / 1000,
            target_counts=self._context.target_counts.series(entry.name, table),
        )
