"""The shard daemon's passages: a fast path for router operations that are admitted at once and forwarded unfiltered.

`VersionedOperations` reports each operation that it forwarded without an ownership filter. `learn` then records the
places of its sharding fields, which are cut out, and the placement that admitted it. Each use checks that the placement
is still current, at the cost of a few attribute reads. If mongod's reply is not the usual one, the ordinary path
finishes the operation.
"""

from operator import itemgetter
from time import perf_counter
from typing import TYPE_CHECKING, Final

from shardwright.daemon.operation_metrics import OK, WRITE_ERRORS, outcome_of_reply
from shardwright.daemon.sidecar.term_fence import ASK_FOR_TERM, has_failed, take_term
from shardwright.daemon.users import RESERVED_ID_START
from shardwright.shardd.batch_passages import ShardBatchPassages, ShardGetMorePassage
from shardwright.shardd.cursor_batches import BegunBatch, InvolvedCursors
from shardwright.shardd.exchange.term_exchange import sharding_spans, without_sharding_fields
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import AdmittedPlacement, NamespaceState
from shardwright.shardd.operations.admission import BegunOperation
from shardwright.shardd.operations.key_changes import names_no_part
from shardwright.shardd.operations.retried_writes import FIND_AND_MODIFY
from shardwright.shardd.orphans.cursor_kinds import Opening, opening_of
from shardwright.shardd.shard_server import ShardServer
from shardwright.shardd.splitting.growth import growth_of_update
from shardwright.shardd.transactions.session_keys import session_key
from shardwright.sharding.passage_fields import (
    QUERIES,
    CommonFields,
    free_values,
    only_document,
    only_statement,
    query_of,
    without_document,
)
from shardwright.sharding.versions import DATABASE_VERSION, SHARD_VERSION
from shardwright.wire.cursor_batch import is_whole_result_frame
from shardwright.wire.message import BODY_AT, OpMsg
from shardwright.wire.passages import (
    AFTER_ID,
    EPOCH,
    FRAME_BYTES_MAX,
    InsertedDocument,
    Outcome,
    Passage,
    Range,
)
from shardwright.wire.rawbson import OBJECT, InvalidBSONError, find
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun
from shardwright.wire.transport.client_connection import ClientConnection

if TYPE_CHECKING:
    from collections.abc import Callable

    from shardwright.daemon.sidecar.mongod import Upstream

_DOCUMENTS: Final = b"documents"
_STATEMENTS: Final = {"insert": _DOCUMENTS, "update": b"updates", "delete": b"deletes"}
_UPDATE: Final = b"update"
_INSERT: Final = "insert"


class ShardPassage(Passage):
    """A layout of requests admitted to one namespace by one placement.

    Places are offsets in frames with an inserted document moved to the end.

    Attributes:
        document_in_body: the inserted document, if it is in the body.
        is_write: whether it writes; mongod's reply then includes its term.
        placement: the placement that admitted the operation; it has no orphans.
        version: the raw shard version.
        database: the database's state and raw version; None if the request has no database version.
        must_end: whether a reply that leaves a cursor open goes to the ordinary path, because it needs the filter.
        may_be_view: whether the target must be a known collection, because reads of views involve other namespaces.
        common: the places of the fields that drivers add.
    """

    __slots__ = (
        "_added",
        "_cut_kept",
        "_payload",
        "_removed",
        "body_end",
        "command",
        "common",
        "database",
        "document_in_body",
        "is_retryable",
        "is_write",
        "may_be_view",
        "must_end",
        "placement",
        "state",
        "version",
    )

    def __init__(
        self,
        request: Request,
        free: list[Range],
        epoch: int,
        document: InsertedDocument | None,
        *,
        rest: Request,
        is_write: bool,
        common: CommonFields,
        state: NamespaceState,
        placement: AdmittedPlacement,
        database: DatabaseState | None,
        payload: Range | None,
        must_end: bool,
    ) -> None:
        super().__init__(request.message.frame, free, epoch, document)
        self.document_in_body = document if document is not None and document.is_in_body else None
        self.command = request.name
        self.is_write = is_write
        self.is_retryable = common.number_at > 0
        self.common = common
        self.state = state
        self.placement = placement
        self.version = request.raw(request.fields[SHARD_VERSION])
        self.database = None if database is None else (database, request.raw(request.fields[DATABASE_VERSION]))
        self.must_end = must_end
        self.may_be_view = placement.table is None and request.name not in FIND_AND_MODIFY
        self.body_end = BODY_AT + len(rest.body)
        self._payload = payload
        self._added = ASK_FOR_TERM if is_write else b""
        kept, at = [], BODY_AT + 4
        removed = -len(self._added)
        for _, start, _, end in sharding_spans(rest):
            kept.append(slice(at, BODY_AT + start))
            at = BODY_AT + end
            removed += end - start
        kept.append(slice(at, self.body_end - 1))
        self._cut_kept: Callable[[bytes], tuple[bytes, ...]] = itemgetter(*kept)
        self._removed = removed

    def request_for_mongod(self, frame: bytes) -> bytes:
        """Return the frame for mongod."""
        removed, end = self._removed, self.body_end
        request = b"".join(
            (
                (len(frame) - removed).to_bytes(4, "little"),
                frame[4:8],
                AFTER_ID,
                (end - BODY_AT - removed).to_bytes(4, "little"),
                *self._cut_kept(frame),
                self._added,
                b"\0",
                frame[end:],
            )
        )
        document = self.document_in_body
        return request if document is None else document.moved_back(request, len(frame) - end)

    def grown_bytes(self, frame: bytes, reply: bytes) -> int:
        """Return the bytes written, as `shardd.splitting.growth.grown_bytes`."""
        document = self.document_in_body
        if document is not None:
            return len(frame) - document.bytes_after + 1 - document.length_at
        if self.document_at:
            return len(frame) - self.document_at
        if self._payload is None:
            return 0
        size = self._payload[1] - self._payload[0]
        return growth_of_update(reply, size, lambda: 1) if self.command == _UPDATE.decode() else size


class ShardPassages(ShardBatchPassages):
    """The passages of a shard daemon.

    Under access control only members of the cluster have passages; they send each session with its owner.
    """

    def __init__(self, shard: ShardServer, involved_cursors: InvolvedCursors | None = None) -> None:
        super().__init__(shard, involved_cursors)
        self._counter = shard.key_statistics.counter
        self.slow_seconds = self._context.options.slow_ms / 1000

    def _begin(self, passage: Passage, client: ClientConnection, received: bytes) -> BegunOperation | BegunBatch | None:
        if isinstance(passage, ShardGetMorePassage):
            return self._begin_batch(passage, client, received)
        assert isinstance(passage, ShardPassage)
        started = perf_counter()
        upstream: Upstream = client.state
        connection, sidecar = upstream.connection, self._context.sidecar
        if connection is None or not connection.is_quiet or client.is_disconnected or not sidecar.certainty.is_certain:
            return None
        frame, document = received, passage.document_in_body
        if document is not None:
            frame = document.moved_to_end(frame)
        state, awaited_at = passage.state, passage.common.awaited_at
        if awaited_at and not (sidecar.mirror.term is not None and sidecar.has_reached(frame, awaited_at)):
            return None
        if not self._is_admitted(passage) or (passage.common.lsid and not self._may_use_session(passage, frame)):
            return None
        request = passage.request_for_mongod(frame)
        client.is_interruptible = not passage.is_write
        state.enter(is_write=passage.is_write)
        return BegunOperation(
            connection,
            request,
            started,
            received,
            sidecar.mirror.term,
            state,
            passage,
            passage.placement,
            is_write=passage.is_write,
            must_end=passage.must_end,
        )

    def _is_admitted(self, passage: ShardPassage) -> bool:
        """Whether the placement has not changed since the passage was learned, and nothing blocks the operation."""
        state, placement = passage.state, passage.placement
        if (
            state.critical_section is not None
            or state.table is not placement.table
            or passage.version not in state.accepted
            or state.orphans is not None
            or (passage.is_write and not self._context.recovery_gate.is_open)
            or (passage.may_be_view and not self._context.views.is_known_collection(state.namespace))
        ):
            return False
        if passage.database is None:
            return True
        database, version = passage.database
        return version in database.accepted and database.critical_section is None

    def _may_use_session(self, passage: ShardPassage, frame: bytes) -> bool:
        """Whether the session belongs to a client and no other state affects a retryable write in it."""
        assert passage.common.lsid is not None
        start, end = passage.common.lsid
        if frame.find(RESERVED_ID_START, start, end) >= 0:
            return False
        transactions, history = self._shard.transactions.open, self._shard.history_table
        if not passage.is_retryable or not (history.sessions or len(transactions)):
            return True
        session = session_key(frame, (OBJECT, start, start, end))
        if session is None or transactions.latest(session) is not None:
            return False
        newest, at = history.sessions.get(session), passage.common.number_at
        return newest is None or int.from_bytes(frame[at : at + 8], "little", signed=True) > newest

    def finish(self, client: ClientConnection, begun: Begun, reply: bytes) -> bytes | None:
        """Finish an operation on the fast path; see `Passages`."""
        if isinstance(begun, BegunBatch):
            return self._finish_batch(client, begun, reply)
        assert isinstance(begun, BegunOperation)
        passage, sidecar = begun.passage, self._context.sidecar
        assert isinstance(passage, ShardPassage)
        seconds = perf_counter() - begun.started
        term, is_write = begun.term, passage.is_write
        answer, answered_in = take_term(reply) if is_write else (reply, term)
        if (
            has_failed(answer)
            or seconds >= self.slow_seconds
            or client.is_disconnected
            or answered_in != term
            or (passage.is_retryable and not self._shard.transaction_coordinators.is_idle)
            or not (is_write or self._may_answer_read(begun))
            or (passage.must_end and not is_whole_result_frame(reply))
        ):
            return None
        table = passage.placement.table
        if table is not None:
            counter = self._counter
            counter.remaining -= 1
            if counter.remaining <= 0:
                counter.sample(Request(OpMsg(begun.request_frame)), answer, begun.state.shard, table)
        if is_write:
            if table is not None:
                size = passage.grown_bytes(begun.request_frame, answer)
                if not self._shard.auto_splitter.adds(size, begun.state, table):
                    self._shard.auto_splitter.observe(Request(OpMsg(begun.request_frame)), answer, begun.state, table)
            sidecar.note_reply(answer)
        outcome = outcome_of_reply(answer)[0] if is_write and WRITE_ERRORS in answer else OK
        self._observe(passage.command, outcome, seconds)
        self._outcomes[Outcome.TAKEN] += 1
        begun.state.exit(begun.operations, is_write=is_write)
        return answer

    def _may_answer_read(self, begun: BegunOperation) -> bool:
        """Whether the term has lasted and no range arrived during the read."""
        sidecar, term = self._context.sidecar, begun.term
        if begun.operations.is_superseded:
            return False
        return term is None or (sidecar.certainty.is_certain and sidecar.mirror.term == term)

    def learn(
        self,
        client: ClientConnection,
        request: Request,
        reply: bytes,
        state: NamespaceState,
        placement: AdmittedPlacement,
        epoch: int,
    ) -> None:
        """Record a passage for an operation that was admitted at once and forwarded unfiltered in the given epoch."""
        message, fields, permit = request.message, request.fields, client.permit
        if (
            permit is None
            or not self._shard.components.parameters.passages.is_enabled
            or epoch != EPOCH.number
            or (request.name not in _STATEMENTS and request.name not in QUERIES)
            or message.flags
            or message.frame[BODY_AT - 1]
            or not client.is_answered_verbatim
            or client.trace is not None
            or SHARD_VERSION not in fields
            or self._is_known(message.frame, permit)
            or not self._table.is_wanted(message.frame, permit)
        ):
            return
        try:
            passage = self._passage_of(request, state, placement, epoch)
        except InvalidBSONError:
            return
        if passage is None or not passage.is_of(message.frame) or not self._is_admitted(passage):
            return
        if passage.must_end and not is_whole_result_frame(reply):
            return
        ordinary = without_sharding_fields(request, ASK_FOR_TERM if passage.is_write else b"")
        document = passage.document_in_body
        frame = message.frame if document is None else document.moved_to_end(message.frame)
        if passage.request_for_mongod(frame) != ordinary:
            return
        self._outcomes[Outcome.LEARNED] += 1
        self._table.add(message.frame, permit, passage)

    def _is_known(self, frame: bytes, permit: bytes) -> bool:
        """Whether a matching passage exists that was declined only this time, for example because of the session."""
        known = self._table.find(frame, permit)
        return isinstance(known, ShardPassage) and self._is_admitted(known)

    def _passage_of(
        self, request: Request, state: NamespaceState, placement: AdmittedPlacement, epoch: int
    ) -> ShardPassage | None:
        """Build the passage of an operation; None for values in unexpected places. InvalidBSONError if malformed."""
        frame, fields = request.message.frame, request.fields
        statements = _STATEMENTS.get(request.name)
        document, payload, update, rest, query_at = None, None, None, request, None
        if request.name == _INSERT:
            document = only_document(frame, request.body, fields, _DOCUMENTS)
            if document is None:
                return None
            if document.is_in_body:
                rest = without_document(request, document)
        common = CommonFields.of(rest.message.frame, rest.fields)
        if common is None:
            return None
        free = list(common.free) if document is None else document.places_in(frame, common.free)
        if document is not None:
            pass
        elif statements is None:
            query_at = query_of(frame, fields, request.name)
            span = fields.get(_UPDATE)
            if span is not None:
                update = span[0], BODY_AT + span[1], BODY_AT + span[2], BODY_AT + span[3]
                payload = update[2:]
        else:
            place = only_statement(frame, request.body, fields, statements)
            if place is None:
                return None
            at, _ = place
            query = find(frame, b"q", at)
            query_at = None if query is None or query[0] != OBJECT else query[2]
            if request.name == _UPDATE.decode():
                update = find(frame, b"u", at)
                span = fields.get(statements)
                payload = (at, len(frame)) if span is None else (span[2], span[3])
        if document is None:
            if query_at is None:
                return None
            free += free_values(frame, query_at, is_deep=True)
        if (document.at + document.bytes_after if document else len(frame)) > FRAME_BYTES_MAX:
            return None
        pattern = placement.mutable_key
        if update is not None:
            if pattern is not None and not names_no_part(frame, update, pattern):
                return None
            if update[0] == OBJECT:
                free += free_values(frame, update[2], is_deep=True)
        opening = Opening.UNFILTERED
        if placement.table is not None and request.name == "find":
            opening = opening_of(request, placement.table.key_pattern)
        if opening is Opening.FILTERED:
            return None
        return ShardPassage(
            request,
            free,
            epoch,
            document,
            rest=rest,
            is_write=request.name != "find",
            common=common,
            state=state,
            placement=placement,
            database=self._context.database(request.db) if DATABASE_VERSION in fields else None,
            payload=payload,
            must_end=opening is Opening.FILTERED_IF_OPEN,
        )
