"""A router's passages for statements that continue a transaction.

A passage checks the transaction for each statement. The transaction must be in progress, with no other running command
of its session, and the shard must be a participant that has answered before. The ordinary path starts and ends
transactions and adds participants.
"""

from operator import itemgetter
from time import time
from typing import TYPE_CHECKING, Any, Final

from shardwright.router.batch_passages import RouterBatchPassages
from shardwright.router.context.router_context import RouterContext
from shardwright.router.operations.begun_operation import BegunStatement
from shardwright.router.operations.operation import PassedOn
from shardwright.router.passage import RouterPassage
from shardwright.router.passage_layout import PassageLayout
from shardwright.router.replies.reply_builder import token_element, with_elements_before_times
from shardwright.router.transactions.router_transaction import (
    OF_TRANSACTIONS,
    READ_CONCERN,
    Phase,
    RouterTransaction,
    TransactionFields,
)
from shardwright.router.transactions.transaction_table import RouterSession
from shardwright.sharding.clock import VectorClock, with_cluster_time
from shardwright.sharding.passage_fields import SESSION_ID_AT
from shardwright.sharding.transaction_protocol import MAY_CHANGE_OWNER
from shardwright.wire.message import BODY_AT
from shardwright.wire.passages import AFTER_ID
from shardwright.wire.rawbson import spans
from shardwright.wire.read_preference import PRIMARY
from shardwright.wire.request import Request, raw_elements
from shardwright.wire.request_validation import API_PARAMETERS
from shardwright.wire.transport.client_connection import ClientConnection

if TYPE_CHECKING:
    from collections.abc import Callable

_API_STRICT: Final = b"apiStrict"
_MAY_CHANGE_OWNER: Final = MAY_CHANGE_OWNER.decode()
_UUID_BYTES: Final = 16


class StatementPassage(RouterPassage):
    """A passage for one layout of statements that continue a transaction."""

    __slots__ = ("_api_elements", "_cut_kept", "_owners", "_removed", "_user")

    def __init__(self, *arguments: Any, request: Request, session: bytes, **more: Any) -> None:  # noqa: ANN401
        """Create the passage of a layout; see `RouterPassage`.

        Args:
            request: the admitted request, without a document in its body.
            session: the key of its session (`SessionId.key`).
        """
        super().__init__(*arguments, **more)
        fields = request.fields
        self._api_elements = raw_elements(request, API_PARAMETERS)
        self._user = session[_UUID_BYTES:]
        self._owners = frozenset[str]() if self.table is None or b"update" not in fields else self.table.shards
        removed = sorted(fields[name][1:4:2] for name in OF_TRANSACTIONS if name in fields)
        kept, at = [], BODY_AT + 4
        for start, end in removed:
            kept.append(slice(at, BODY_AT + start))
            at = BODY_AT + end
        kept.append(slice(at, self.body_end - 1))
        self._cut_kept: Callable[[bytes], tuple[bytes, ...]] = itemgetter(*kept)
        self._removed = sum(end - start for start, end in removed)

    def session_of(self, frame: bytes, shard_id: str, context: RouterContext) -> tuple[bytes, RouterSession] | None:
        """Find the session whose transaction a frame continues on a shard.

        Returns:
            The session and its key; None leaves the frame to the ordinary path.
        """
        assert self.common.lsid is not None
        at, number_at = self.common.lsid[0] + SESSION_ID_AT, self.common.number_at
        key = frame[at : at + _UUID_BYTES] + self._user
        session = context.transactions.find(key)
        transaction = None if session is None or session.is_active else session.transaction
        if (
            session is None
            or transaction is None
            or transaction.number != int.from_bytes(frame[number_at : number_at + 8], "little", signed=True)
            or transaction.phase is not Phase.IN_PROGRESS
            or transaction.is_snapshot
            or transaction.elements != self._api_elements
            or not transaction.has_answer_of(shard_id)
            or not self._is_handed_over_as_learned(context)
        ):
            return None
        return key, session

    def _is_handed_over_as_learned(self, context: RouterContext) -> bool:
        """Whether shards would be requested to hand over documents as they were when the passage was learned."""
        if not self._owners:
            return True
        is_understood = context.shards.is_understood
        is_asked = all(is_understood(shard, _MAY_CHANGE_OWNER, PRIMARY) for shard in self._owners)
        return is_asked == bool(self.passed_on.elements)

    def request_in(
        self, transaction: RouterTransaction, shard_id: str, frame: bytes, clock: VectorClock
    ) -> bytes | None:
        """Build the shard's frame in a transaction; None if the client's cluster time is later than the router's."""
        time_at, end, passed_on = self.common.time_at, self.body_end, self.passed_on
        if time_at and clock.compare(frame, time_at) > 0:
            return None
        elements = passed_on.routing.versions_for(shard_id) + passed_on.elements + transaction.own_elements
        added = len(elements) - self._removed
        request = b"".join(
            (
                (len(frame) + added).to_bytes(4, "little"),
                frame[4:8],
                AFTER_ID,
                (end - BODY_AT + added).to_bytes(4, "little"),
                *self._cut_kept(frame),
                elements,
                b"\0",
                frame[end:],
            )
        )
        document = self.document_in_body
        if document is not None:
            request = document.moved_back(request, len(frame) - end)
        return with_cluster_time(request, clock)


class StatementPassages(RouterBatchPassages):
    """The passages of statements that continue a transaction."""

    def _begin_statement(
        self,
        passage: StatementPassage,
        client: ClientConnection,
        received: bytes,
        frame: bytes,
        started: float,
        shard_id: str,
        address: str | None,
    ) -> BegunStatement | None:
        """Send a statement of a transaction, given as received and as admitted; None leaves it to the ordinary path."""
        context, lsid = self._context, passage.common.lsid
        found = passage.session_of(frame, shard_id, context)
        if found is None or lsid is None or not context.sessions.use_again(frame[slice(*lsid)], time()):
            return None
        key, session = found
        transaction = session.transaction
        assert transaction is not None
        request = passage.request_in(transaction, shard_id, frame, context.clock)
        pool = None if request is None or address is None else context.pools[address]
        connection = None if pool is None else pool.lend_quiet()
        if request is None or pool is None or connection is None:
            return None
        context.transactions.check_out_now(key)
        if passage.seconds:
            context.deadlines.set(client, passage.seconds)
        client.state = begun = BegunStatement(
            context,
            client,
            received,
            started,
            passage.passed_on.routing,
            shard_id,
            pool,
            connection,
            request,
            passage,
            None if passage.admission is None else passage.admission.of_request,
            session,
            transaction,
        )
        return begun

    def _end_statement(self, begun: BegunStatement, answer: bytes, *, is_read_only: bool) -> bytes:
        """Note a successful statement. Return the answer with the recovery token; the caller checks the session in."""
        transaction = begun.transaction
        transaction.note_statement(begun.shard_id, is_read_only=is_read_only)
        self._context.transactions.statistics.requests += 1
        return with_elements_before_times(answer, token_element(transaction.recovery_shard))

    @staticmethod
    def _may_learn_in(transaction: RouterTransaction | None, request: Request, passed_on: PassedOn) -> bool:
        """Whether a passage can repeat an admitted request, in its transaction if it has one."""
        if transaction is None:
            return not passed_on.elements
        fields = request.fields
        return passed_on.merged is None and READ_CONCERN not in fields and _API_STRICT not in fields

    @staticmethod
    def _session_of(request: Request, places: PassageLayout) -> bytes | None:
        """Return the key of an admitted request's session (`SessionId.key`); None if it is in an unusual form."""
        common, frame = places.common, places.request.message.frame
        if common.lsid is None or not common.number_at:
            return None
        at = common.lsid[0] + SESSION_ID_AT
        named = [name for name, _ in spans(frame, common.lsid[0])]
        if len(set(named)) < len(named):  # the ordinary path reads the last one of a repeated field
            return None
        session = TransactionFields.of(request).session
        return session if frame[at : at + _UUID_BYTES] == session[:_UUID_BYTES] else None
