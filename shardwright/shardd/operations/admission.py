"""Admission of versioned operations: version checks, waits for critical sections, and operation counts.

Nearly every operation is admitted by `try_admit`, with two look-ups and a comparison of bytes. `admit` handles the
rest. It finds the mismatch, refreshes if this shard may be stale, and waits within the operation's ``maxTimeMS``.

An operation that involves several namespaces is admitted to all of them at once. It waits uncounted while any of them
has a critical section that blocks it, and is then counted in all without a checkpoint in between. So operations and
critical sections cannot deadlock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import trio

from shardwright.daemon.sidecar.role_certainty import RoleCertainty
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.term_exchange import OperationGeneration, seconds_allowed
from shardwright.shardd.metadata.critical_sections import TRANSACTION_SECONDS_MAX, RecoveryGate
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import CriticalSection, NamespaceState
from shardwright.shardd.metadata.refresh import CausalReads, MetadataRefresher
from shardwright.shardd.operations.involvement import (
    InvolvedNamespace,
    Involvement,
    InvolvementFinder,
    merges_cursors,
    named_namespaces,
)
from shardwright.shardd.operations.waiting_operations import WaitingOperations
from shardwright.shardd.transactions.open_transactions import OpenTransaction
from shardwright.shardd.transactions.transactions import SnapshotReads, is_snapshot_read
from shardwright.sharding.versions import (
    DATABASE_VERSION,
    IGNORED,
    SHARD_VERSION,
    ChunkVersion,
    DatabaseVersion,
    StaleError,
)
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import OBJECT, STRING, Span, spans
from shardwright.wire.request import Request
from shardwright.wire.transport.client import Begun, Connection
from shardwright.wire.transport.reactor import in_own_task, may_run_in_reactor

if TYPE_CHECKING:
    from shardwright.shardd.metadata.namespace_state import AdmittedPlacement
    from shardwright.wire.passages import Passage


class BegunOperation(Begun):
    """An admitted operation that a passage has sent.

    Attributes:
        operations: the generation in which it was counted.
        must_end: whether an open cursor after the first batch requires the complete filter.
    """

    __slots__ = ("is_write", "must_end", "operations", "passage", "placement", "request_frame", "state", "term")

    def __init__(
        self,
        connection: Connection,
        frame: bytes,
        started: float,
        request_frame: bytes,
        term: int | None,
        state: "NamespaceState",
        passage: "Passage",
        placement: "AdmittedPlacement",
        *,
        is_write: bool,
        must_end: bool,
    ) -> None:
        self.connection, self.frame, self.started = connection, frame, started
        self.following = self.answered = ()
        self.request_frame = request_frame
        self.term = term
        self.state = state
        self.operations: OperationGeneration = state.operations
        self.passage = passage
        self.placement = placement
        self.is_write = is_write
        self.must_end = must_end

    def give_up(self) -> None:
        """Count the operation out; see `Begun`."""
        super().give_up()
        self.state.exit(self.operations, is_write=self.is_write)


NO_SHARD_VERSION: Final = 7032300
IGNORED_FOR_READ: Final = 7032301
"""MongoDB's error codes for reads of sharded collections from which orphans cannot be filtered."""

_READS: Final = frozenset(
    {
        "find",
        "aggregate",
        "count",
        "distinct",
        "explain",
        "listIndexes",
        "listCollections",
        "collStats",
        "collstats",
        "dataSize",
        "datasize",
        "validate",
        "planCacheListFilters",
        "filemd5",
        "splitVector",
    }
)
NAMED_IN_FULL: Final = frozenset({"dataSize", "datasize", "splitVector"})
"""Versioned commands whose argument is ``db.collection`` instead of a collection name."""

_FILE_MD5: Final = "filemd5"
_NAMED_OTHERWISE: Final = NAMED_IN_FULL | {_FILE_MD5}

_FILTERED_READS: Final = frozenset({"find", "aggregate", "count", "distinct"})


def is_read(request: Request) -> bool:
    """Whether an operation only reads, so that the first phase of a critical section does not block it."""
    return request.name in _READS


def namespace_of(request: Request) -> str:
    """Return the namespace of a versioned command; only the database if it names no collection."""
    body = request.body
    kind, _, start, end = next(iter(request.fields.values()))
    if kind == OBJECT:  # explain: use the explained command
        _, (kind, _, start, end) = next(iter(spans(body, start)), (b"", (0, 0, 0, 0)))
    if kind != STRING:
        return _chunks_of_file(request) if request.name == _FILE_MD5 else request.db
    name = body[start + 4 : end - 1].decode(errors="replace")
    if request.name in _NAMED_OTHERWISE:
        return _chunks_of_file(request) if request.name == _FILE_MD5 else name
    return f"{request.db}.{name}"


def _chunks_of_file(request: Request) -> str:
    """Return the chunks collection of a ``filemd5``, whose first argument is the ``_id`` of a GridFS file."""
    return f"{request.db}.{request.get(b'root', 'fs')}.chunks"


@may_run_in_reactor
async def wait_for_read_concern(
    context: ShardContext, request: Request, causal_reads: CausalReads, snapshot_reads: SnapshotReads
) -> None:
    """Wait until this shard can serve the read concern.

    As on a genuine shard, this precedes the version check. The metadata compared must be at least as new as the
    ``afterClusterTime``.
    """
    await context.sidecar.prepare(request)
    is_primary, is_snapshot = context.is_primary, is_snapshot_read(request)
    if is_primary and not is_snapshot:
        return
    namespaces = (namespace_of(request), *named_namespaces(request))
    if not is_primary:
        for name in namespaces:
            await causal_reads.prepare(request, context.namespace(name))
    if is_snapshot:
        await in_own_task()
        await snapshot_reads.wait_decided(request, namespaces)


@dataclass(frozen=True, slots=True)
class Entry:
    """Admission of an operation to a further namespace besides its own."""

    involved: InvolvedNamespace
    operations: OperationGeneration

    @classmethod
    def to(cls, involved: InvolvedNamespace, transaction: OpenTransaction | None = None) -> "Entry":
        """Count the operation and its transaction; the caller has checked that no critical section blocks it."""
        entry = cls(involved, involved.state.operations)
        involved.state.enter(is_write=involved.is_written)
        if transaction is not None:
            transaction.enter(involved.state)
        return entry

    def leave(self) -> None:
        """Count the operation out."""
        self.involved.state.exit(self.operations, is_write=self.involved.is_written)


class Admission:
    """The shard version check of operations, against the shard's metadata.

    Args:
        gate: closed until the critical sections of former primaries have been recovered.
        certainty: whether the cached state belongs to mongod's current role.
    """

    def __init__(
        self,
        namespace: Callable[[str], NamespaceState],
        database: Callable[[str], DatabaseState],
        refresher: MetadataRefresher,
        gate: RecoveryGate,
        involvements: InvolvementFinder,
        certainty: RoleCertainty,
        waiting: WaitingOperations,
    ) -> None:
        self._namespace = namespace
        self._database = database
        self._refresher = refresher
        self._gate = gate
        self._involvements = involvements
        self._certainty = certainty
        self._waiting = waiting

    def try_admit(
        self, request: Request, transaction: OpenTransaction | None = None, *, is_write: bool
    ) -> NamespaceState | None:
        """Admit an operation if nothing blocks it; return the namespace's state, or None if `admit` is needed."""
        if not self._certainty.is_certain:
            return None
        body, fields = request.body, request.fields
        state = self._namespace(namespace_of(request))
        if state.critical_section is not None or (is_write and not self._gate.is_open):
            return None
        shard_version = fields.get(SHARD_VERSION)
        if shard_version is None:
            return None
        raw = body[shard_version[2] : shard_version[3]]
        if raw not in state.accepted or (raw == IGNORED.raw and not is_write):
            return None
        database_version = fields.get(DATABASE_VERSION)
        if database_version is not None:
            database = self._database(request.db)
            if body[database_version[2] : database_version[3]] not in database.accepted:
                return None
            if database.critical_section is not None:
                return None
        if self._involvements.is_needed(request, state):
            return None
        state.enter(is_write=is_write)
        if transaction is not None:
            transaction.enter(state)
        return state

    @may_run_in_reactor
    async def admit(
        self, request: Request, transaction: OpenTransaction | None = None, *, is_write: bool
    ) -> tuple[NamespaceState, Sequence[Entry]]:
        """Admit an operation after waiting and refreshing as necessary.

        Returns:
            The namespace's state, and an entry for each further namespace of the operation.

        Raises:
            StaleError: the versions do not match.
            CommandError: MaxTimeMSExpired or, in a transaction, LockTimeout: the wait took too long. Interrupted: the
                operation or its session was killed. TypeMismatch: a version is malformed. NotWritablePrimary: a write
                on a secondary. CommandOnShardedViewNotSupportedOnMongod and CommandNotSupported: a namespace is not on
                this shard. Errors of a refresh are propagated.
            BackendError: mongod does not answer.
        """
        await in_own_task()
        with self._waiting.waiting(request, seconds_allowed(request)):
            admitted = await self._admit(request, transaction, is_write=is_write)
        return admitted

    def try_admit_to(self, request: Request, namespaces: Sequence[InvolvedNamespace]) -> Sequence[Entry] | None:
        """Admit an operation to the further namespaces alone; None if `wait_admissible_to` is needed first.

        Raises:
            CommandError: CommandNotSupported, a namespace is not on this shard alone.
        """
        if not self._certainty.is_certain or _section_of_any(namespaces, None) is not None:
            return None
        try:
            _check_further(request, namespaces)
        except StaleError:
            return None
        return [Entry.to(each) for each in namespaces]

    async def wait_admissible_to(self, request: Request, namespaces: Sequence[InvolvedNamespace]) -> None:
        """Wait and refresh as necessary until `try_admit_to` can decide.

        Raises:
            CommandError: MaxTimeMSExpired, Interrupted, or an error of a refresh; see `admit`.
            BackendError: mongod does not answer.
        """
        refreshed: set[str] = set()
        with self._waiting.waiting(request, seconds_allowed(request)):
            while True:
                with self._certainty.while_role_lasts():
                    if not self._certainty.is_certain:
                        await self._certainty.wait_certain()
                    section = _section_of_any(namespaces, None)
                    if section is not None:
                        await section.wait_released()
                        continue
                    try:
                        _check_further(request, namespaces)
                    except StaleError as error:
                        await self._refresh_once(error, refreshed)
                        continue
                    except CommandError:
                        pass  # `try_admit_to` raises it, unless the caller finds after the wait that it is irrelevant
                    return

    async def _refresh_once(self, error: StaleError, refreshed: set[str]) -> None:
        """Refresh the stale namespace or database, once per operation.

        Args:
            refreshed: the subjects already refreshed for the operation.

        Raises:
            StaleError: the given error, if the router has to refresh.
        """
        stale = error.subject
        if not error.may_shard_be_stale or stale in refreshed:
            raise error
        refreshed.add(stale)
        if error.code == ErrorCode.StaleDbVersion:
            await self._refresher.refresh_database(self._database(stale))
        else:
            await self._refresher.refresh_collection(self._namespace(stale))

    async def _admit(
        self, request: Request, transaction: OpenTransaction | None, *, is_write: bool
    ) -> tuple[NamespaceState, Sequence[Entry]]:
        state = self._namespace(namespace_of(request))
        involvement = Involvement.none()
        refreshed: set[str] = set()
        while True:
            # A change of role may interrupt a wait; then everything is checked again.
            with self._certainty.while_role_lasts():
                if not self._certainty.is_certain:
                    await self._certainty.wait_certain()
                if self._involvements.is_needed(request, state) and not self._involvements.is_current(involvement):
                    involvement = await self._involvements.find(request, state)
                    continue
                if (is_write or involvement.writes) and not self._gate.is_open:
                    await self._gate.wait_open()
                    continue
                section = self._blocking_section(request, state, involvement, transaction, is_write=is_write)
                if section is not None:
                    section.held_writes += is_write
                    await _wait_released(section, transaction, state.namespace)
                    continue
                try:
                    self._check(request, state)
                    for involved in involvement.namespaces:
                        involved.check(request.body, state.shard)
                except StaleError as error:
                    await self._refresh_once(error, refreshed)
                    continue
                except CommandError as error:
                    if error.code == ErrorCode.CommandOnShardedViewNotSupportedOnMongod:
                        await self._involvements.check_collation(request, state)
                    raise
                state.enter(is_write=is_write)
                if transaction is not None:
                    transaction.enter(state)
                return state, [Entry.to(each, transaction) for each in involvement.namespaces]

    def _blocking_section(
        self,
        request: Request,
        state: NamespaceState,
        involvement: Involvement,
        transaction: OpenTransaction | None,
        *,
        is_write: bool,
    ) -> CriticalSection | None:
        """Return a critical section that blocks the operation, if there is one.

        A critical section waits for the transactions that are inside the namespace, so it must not block them.
        Statements of other transactions count as writes, because a critical section would have to wait for them.
        """
        sections: list[CriticalSection | None] = []
        if transaction is None or not transaction.is_inside(state):
            sections.append(state.critical_section)
            if DATABASE_VERSION in request.fields:
                sections.append(self._database(request.db).critical_section)
        is_write = is_write or transaction is not None
        own = next((each for each in sections if each is not None and each.blocks(is_write=is_write)), None)
        return own or _section_of_any(involvement.namespaces, transaction)

    def _check(self, request: Request, state: NamespaceState) -> None:
        """Compare both versions, the database's first, as shards do."""
        body, fields = request.body, request.fields
        database_span, shard_span = fields.get(DATABASE_VERSION), fields.get(SHARD_VERSION)
        if database_span is not None:
            received = DatabaseVersion.from_span(body, database_span)
            self._database(request.db).check_version(body[database_span[2] : database_span[3]], received)
        if shard_span is not None:
            state.check_version(body[shard_span[2] : shard_span[3]], ChunkVersion.from_span(body, shard_span))
        if state.table is not None and request.name in _FILTERED_READS and not merges_cursors(request):
            _check_can_be_filtered(body, shard_span)


async def _wait_released(section: CriticalSection, transaction: OpenTransaction | None, namespace: str) -> None:
    """Wait until a critical section ends; in a transaction for a limited time.

    The DDL operation that holds the section may be waiting on another shard for the same transaction. MongoDB limits
    the wait for that reason (``metadataRefreshInTransactionMaxWaitBehindCritSecMS``).

    Raises:
        CommandError: LockTimeout, a statement of a transaction has waited for too long.
    """
    if transaction is None:
        return await section.wait_released()
    with trio.move_on_after(TRANSACTION_SECONDS_MAX):
        return await section.wait_released()
    raise CommandError(
        ErrorCode.LockTimeout, f"a statement of a transaction has waited too long for a change of {namespace} to end"
    )


def _section_of_any(
    namespaces: Sequence[InvolvedNamespace], transaction: OpenTransaction | None
) -> CriticalSection | None:
    """Return a critical section of a further namespace that blocks the operation, if there is one."""
    for involved in namespaces:
        if transaction is not None and transaction.is_inside(involved.state):
            continue
        for section in (involved.state.critical_section, involved.database.critical_section):
            if section is not None and section.blocks(is_write=involved.is_written or transaction is not None):
                return section
    return None


def _check_further(request: Request, namespaces: Sequence[InvolvedNamespace]) -> None:
    """Check all further namespaces; errors as for `InvolvedNamespace.check`."""
    for involved in namespaces:
        involved.check(request.body, involved.state.shard)


def _check_can_be_filtered(body: bytes, shard_version: Span | None) -> None:
    """Refuse a read of a sharded collection that carries no shard version."""
    if shard_version is None:
        raise CommandError(
            NO_SHARD_VERSION, "getOwnershipFilter called by operation that doesn't specify shard version"
        )
    if ChunkVersion.from_span(body, shard_version) == IGNORED:
        raise CommandError(
            IGNORED_FOR_READ,
            "For sharded collections getOwnershipFilter cannot be relied on without a valid shard version",
        )
