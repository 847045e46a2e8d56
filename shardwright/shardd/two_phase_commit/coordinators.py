"""The two-phase commits that this shard coordinates, and the outcome of transactions without a coordinator.

A commit has a coordinator here if its transaction began on this primary with ``coordinator: true``, less than its
lifetime ago. Otherwise it may already be committed, or its coordinator may be on another shard. Then its state in this
shard's mongod decides: committed, aborted, waiting for a decision, or still open. An open transaction is aborted, so
that no coordinator gets its vote.

Commits appear in the metrics, in ``serverStatus`` (`CommitStatistics`) and in ``$currentOp``.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any, Final

import trio
from bson.int64 import Int64

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.metrics import Metrics
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.local_mongod.local_collections import MAJORITY
from shardwright.shardd.metadata.critical_sections import RecoveryGate
from shardwright.shardd.transactions.open_transactions import OpenTransactions
from shardwright.shardd.transactions.session_keys import retryable_write_of, transaction_of
from shardwright.shardd.transactions.statements import BEFORE_ALL_PREPARED
from shardwright.shardd.two_phase_commit.commit_state import (
    Abort,
    CommitState,
    Decision,
    Step,
    TransactionId,
    UnbegunCommits,
    name_of,
)
from shardwright.shardd.two_phase_commit.transaction_coordinator import (
    CoordinatorDocuments,
    TransactionCoordinator,
    logger,
)
from shardwright.sharding.transaction_protocol import COORDINATOR, START_TRANSACTION
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import TRANSIENT_TRANSACTION_ERROR, CommandError
from shardwright.wire.message import with_body
from shardwright.wire.rawbson import OBJECT, append, element, encode_document, find, without
from shardwright.wire.request import Request
from shardwright.wire.transport.client import response_body

_STEPS: Final = tuple(step for step in Step if step is not Step.ENDED)

_ABORTED: Final = "Recovering the transaction's outcome found the transaction aborted"

_PAUSE_SECONDS: Final = 0.02
"""Maximum first pause between probes; it doubles each time."""

_PAUSE_SECONDS_MAX: Final = 1.0
"""Maximum pause. The wait for the coordinator's decision has no limit, as in MongoDB."""


class CommitStatistics:
    """Counters since the start of the daemon."""

    def __init__(self, metrics: Metrics, running: Iterable[TransactionCoordinator]) -> None:
        self.created = 0
        self.started = 0
        self._ended: Counter[str | None] = Counter()
        self._running = running
        self._outcomes = metrics.labelled_counter(
            "two_phase_commits", "Two-phase commits that have ended", "outcome", ("commit", "abort", "None")
        )
        metrics.gauge(
            "two_phase_commits_active", "Two-phase commits in progress", lambda: sum(self._in_steps().values())
        )

    def count_end(self, decision: Decision | None) -> None:
        """Count a commit that has ended."""
        name = name_of(decision)
        self._ended[name] += 1
        self._outcomes.add(f"{name}")

    def server_status(self) -> dict[str, Any]:
        """Return the section ``twoPhaseCommitCoordinator`` of ``serverStatus``."""
        steps = self._in_steps()
        return {
            "totalCreated": Int64(self.created),
            "totalStartedTwoPhaseCommit": Int64(self.started),
            "totalAbortedTwoPhaseCommit": Int64(self._ended["abort"]),
            "totalCommittedTwoPhaseCommit": Int64(self._ended["commit"]),
            "currentInSteps": {step.value: Int64(steps[step]) for step in _STEPS},
        }

    def _in_steps(self) -> Counter[Step]:
        return Counter(each.state.step for each in self._running)


def coordinator_operation(coordinator: TransactionCoordinator, address: str) -> dict[str, Any]:
    """Describe a commit as ``$currentOp`` of a MongoDB 6.0 shard does; `address` is this daemon's ``host:port``."""
    state, times = coordinator.state, coordinator.times
    now = times.now()
    left = timedelta(seconds=coordinator.deadline - trio.current_time())
    fields: dict[str, Any] = {
        **coordinator.identity.to_document(),
        "txnRetryCounter": 0,
        "numParticipants": Int64(len(state.participants)),
        "state": state.step.state,
        "commitStartTime": times.began,
        "hasRecoveredFromFailover": coordinator.is_recovered,
        "stepDurations": {name: Int64(micros) for name, micros in times.durations().items()},
    }
    if state.decision is not None:
        fields["decision"] = state.decision.to_document()
    fields["deadline"] = now + left
    return {"host": address, "desc": "transaction coordinator", "twoPhaseCommitCoordinator": fields}


SERVER_STATUS: Final = "serverStatus"

_SECTION: Final = b"twoPhaseCommitCoordinator"


def with_commit_statistics(frame: bytes | None, section: Mapping[str, Any]) -> bytes | None:
    """Replace the section ``twoPhaseCommitCoordinator`` in mongod's reply to ``serverStatus``.

    In a plain mongod the section counts nothing. A reply lacks it if it is an error, or if the client excluded it.
    """
    if frame is None:
        return None
    body = response_body(frame)
    if find(body, _SECTION) is None:
        return frame
    return with_body(frame, append(without(body, {_SECTION}), element(_SECTION, OBJECT, encode_document(section))))


async def recover_outcome(mongod: LocalMongod, identity: TransactionId) -> dict[str, Any]:
    """Wait for a transaction's outcome on this shard, aborting it if it is not prepared; return the reply.

    Raises:
        CommandError: NoSuchTransaction, it was aborted; TransactionTooOld, the session has a newer one; or mongod's
            error, after which the outcome is unknown.
        BackendError: mongod does not answer.
    """
    # The transaction ends inside mongod, and no command waits for that without taking part in the transaction.
    backoff = Backoff(_PAUSE_SECONDS, _PAUSE_SECONDS_MAX)
    has_asked = False
    while True:
        try:
            reply = await mongod.command("admin", _probe(identity))
        except CommandError as error:
            if error.code == ErrorCode.NoSuchTransaction:
                raise _aborted(error) from error
            if error.code != ErrorCode.InvalidOptions:
                raise
        else:
            return {name: value for name, value in reply.items() if name == "writeConcernError"}
        if has_asked:
            await backoff.pause()
        has_asked = True


def _probe(identity: TransactionId) -> dict[str, Any]:
    """Build a command that commits nothing, but reports or forces the outcome.

    mongod refuses the timestamp with InvalidOptions. An unprepared transaction does not survive that; a second probe
    distinguishes it from a prepared one. A committed transaction answers ok. The command is atomic, so a concurrent
    ``prepareTransaction`` runs either before or after it.
    """
    return {
        "commitTransaction": 1,
        **identity.to_document(),
        "autocommit": False,
        "commitTimestamp": BEFORE_ALL_PREPARED,
        "writeConcern": MAJORITY,
    }


def _aborted(error: CommandError) -> CommandError:
    """Return the router's error, not transient if a majority does not confirm the primary's answer."""
    if "writeConcernError" in error.extra:
        return CommandError(error.code, _ABORTED, extra=error.extra)
    return CommandError(error.code, _ABORTED, labels=(TRANSIENT_TRANSACTION_ERROR,))


LIFETIME_LIMIT: Final = "transactionLifetimeLimitSeconds"
"""The server parameter of mongod with the time limit for a transaction."""

_LIFETIME_SECONDS: Final = 60.0
"""mongod's default, until its value has been read."""


class TransactionCoordinators:
    """The coordinators of one shard daemon, and the transactions for which it may become one.

    Methods that wait raise CommandError with NotWritablePrimary outside a term as primary.
    """

    def __init__(self, context: ShardContext, transactions: OpenTransactions) -> None:
        self._transactions = transactions
        self._context = context
        self._documents = CoordinatorDocuments(context.mongod)
        self._nursery: trio.Nursery | None = None
        self._gate = RecoveryGate(lambda: context.is_primary)
        self._running: dict[TransactionId, TransactionCoordinator] = {}
        self._unbegun = UnbegunCommits(trio.current_time)
        self._lifetime_seconds = _LIFETIME_SECONDS
        self.statistics = CommitStatistics(context.metrics, self._running.values())

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Resume the commits that former primaries left behind in the term's nursery, and then accept new ones."""
        # Participants must not receive a decision that this primary has but a majority does not.
        await self._context.wait_majority()
        await self.read_lifetime()
        for document in await self._documents.all():
            self._resume(document, nursery)
        self._nursery = nursery
        self._gate.open()

    def end_term(self) -> None:
        """Discard all commits. Coordinators were cancelled with their nursery; the next primary resumes them."""
        self._gate.close()
        self._nursery = None
        self._running.clear()
        self._unbegun.clear()

    def expect(self, identity: TransactionId) -> None:
        """Expect to coordinate a transaction, because its first statement on this shard had ``coordinator: true``."""
        if self._unbegun.begin(identity, self._lifetime_seconds):
            self.statistics.created += 1

    def has(self, identity: TransactionId) -> bool:
        """Whether this shard coordinates a transaction, or will if its commit is requested."""
        return identity in self._running or self._unbegun.has(identity)

    @property
    def is_idle(self) -> bool:
        """Whether recovery is complete and no commit is in progress."""
        return self._gate.is_open and not self._running

    async def wait_for_attempts(self, write: bytes) -> None:
        """Wait for commits of the transaction that an earlier attempt of a retryable write started.

        Raises:
            CommandError: InterruptedDueToReplStateChange, the next primary continues the commit.
        """
        await self._gate.wait_open()
        with self._context.sidecar.certainty.while_role_lasts() as scope:
            for coordinator in self.running:
                if retryable_write_of(coordinator.identity.session) == write:
                    await coordinator.ended.wait()
        if scope.cancelled_caught:
            raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "operation was interrupted")

    async def wait_for_retryable_writes(self) -> None:
        """Wait for the current commits of transactions that executed retryable writes. Call it within a term.

        A shard that receives their session history with a range answers retries from it, regardless of commits here.
        """
        await self._gate.wait_open()
        for coordinator in self.running:
            if retryable_write_of(coordinator.identity.session) is not None:
                await coordinator.ended.wait()

    @property
    def running(self) -> Sequence[TransactionCoordinator]:
        """The commits in progress."""
        return tuple(self._running.values())

    async def commit(self, identity: TransactionId, participants: Sequence[str]) -> dict[str, Any]:
        """Commit a transaction, or recover its outcome; return the reply.

        A new primary first resumes the commits in progress.

        Args:
            participants: the participating shards. If there are none, the outcome is recovered, which aborts a
                transaction whose commit has not begun.

        Raises:
            CommandError: it was aborted, with the code of the vote that decided; as `recover_outcome`.
            BackendError: mongod does not answer.
        """
        await self._gate.wait_open()
        nursery = self._nursery
        assert nursery is not None
        coordinator = self._running.get(identity)
        deadline = self._unbegun.take(identity)
        if coordinator is None and participants and deadline is not None:
            coordinator = self._start(
                TransactionCoordinator(
                    self._context, identity, CommitState(participants), deadline, is_recovered=False
                ),
                nursery,
            )
        if coordinator is None:
            return await self._recover_outcome(identity)
        await coordinator.ended.wait()
        decision = coordinator.state.decision
        if isinstance(decision, Abort):
            labels = (TRANSIENT_TRANSACTION_ERROR,) if decision.code == ErrorCode.NoSuchTransaction else ()
            message = f"Transaction was aborted :: caused by :: {decision.message}"
            raise CommandError(decision.code, message, labels=labels)
        return {}

    async def _recover_outcome(self, identity: TransactionId) -> dict[str, Any]:
        try:
            reply = await recover_outcome(self._context.mongod, identity)
        except CommandError as error:
            if error.code == ErrorCode.NoSuchTransaction:
                self._note_end(identity)
            raise
        self._note_end(identity)
        return reply

    def _note_end(self, identity: TransactionId) -> None:
        """End a transaction for waiting migrations, because no command of the router has ended it."""
        transaction = self._transactions.find(identity.session, identity.number)
        if transaction is not None:
            self._transactions.end(transaction)

    def _resume(self, document: Mapping[str, Any], nursery: trio.Nursery) -> None:
        try:
            identity = TransactionId.from_document(document["_id"])
            state = CommitState.recovered(document)
        except (KeyError, TypeError, CommandError) as error:
            # Kept for the version that wrote it.
            logger.error("Cannot resume a commit of an unknown form", document=str(document), error=str(error))
            return
        logger.info(
            "Resuming a two-phase commit", lsid=identity.session_id, txn_number=identity.number, step=state.step.value
        )
        self.statistics.created += 1
        deadline = trio.current_time() + self._lifetime_seconds
        self._start(TransactionCoordinator(self._context, identity, state, deadline, is_recovered=True), nursery)

    def _start(self, coordinator: TransactionCoordinator, nursery: trio.Nursery) -> TransactionCoordinator:
        self.statistics.started += 1
        self._running[coordinator.identity] = coordinator
        nursery.start_soon(self._run, coordinator)
        return coordinator

    async def _run(self, coordinator: TransactionCoordinator) -> None:
        await coordinator.run()
        self.statistics.count_end(coordinator.state.decision)
        del self._running[coordinator.identity]

    async def read_lifetime(self) -> None:
        """Read the lifetime limit from mongod; it applies to transactions that begin from now on."""
        reply = await self._context.mongod.command("admin", {"getParameter": 1, LIFETIME_LIMIT: 1})
        self._lifetime_seconds = float(reply[LIFETIME_LIMIT])


def expect_commit(request: Request, coordinators: TransactionCoordinators) -> None:
    """Expect to coordinate the transaction that a statement with ``coordinator: true`` has started.

    Call it only after mongod has started the transaction. One that mongod refuses to start may have been committed long
    ago, and its participants would never vote on it again.
    """
    if request.get(COORDINATOR) is not True or START_TRANSACTION not in request.fields:
        return
    identity = transaction_of(request)
    if identity is not None:
        coordinators.expect(TransactionId(*identity))
