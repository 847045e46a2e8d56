"""A shard's transactions in a term, and the snapshots from which they and other reads may read.

`Transactions` restores the table at the beginning of a term, and synchronizes it with mongod until the end. mongod may
end a transaction without notice to this daemon. The cause may be ``transactionLifetimeLimitSeconds``, killSessions, or
an error that does not mention it. So quiet transactions are looked up from time to time, in mongod's records of the
transactions that are open on it (`live_transactions`).

Functions that access mongod raise CommandError if it refuses, and BackendError if it does not answer.

**Moved ranges and databases** (`check_not_moved`, `check_not_moved_since`). A transaction reads from a snapshot. On the
recipient of a range, an older snapshot lacks the documents, so the range would be found empty. A transaction that reads
at a cluster time also writes by the placement of that time, when another shard may have owned the range.

While the unsharded collections of a database are copied, they are incomplete here. An older snapshot shows this
incomplete state, and no shard has the former state any more.

**Outside of transactions** (`SnapshotReads`), while transactions are prepared. A snapshot includes the commits of
transactions that were prepared before its time, so its reader waits for their decision. mongod 6.0.5 does so in
``find`` and ``aggregate``, but not in ``getMore``. Most aggregations on several shards open their cursors with an empty
batch. So such a read waits here, before its cursor is opened. Transactions prepared later are later than the snapshot,
because the oplog has reached its time already.
"""

from collections.abc import AsyncIterator, Callable, Collection, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import bson
import trio
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.daemon.backoff import Backoff
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.noop_writer import READ_CONCERN
from shardwright.shardd.context.shard_context import ShardContext
from shardwright.shardd.exchange.term_exchange import seconds_allowed
from shardwright.shardd.metadata.critical_sections import RecoveryGate
from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter, unowned_filter
from shardwright.shardd.transactions.open_transactions import OpenTransaction, OpenTransactions
from shardwright.shardd.transactions.session_keys import is_killed_by, session_key
from shardwright.shardd.transactions.statements import TransactionEndings, TransactionStatements
from shardwright.sharding.cluster_time import pack_timestamp, unpack_timestamp
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.targeting.filters import exact_shard_key
from shardwright.sharding.transaction_protocol import AUTOCOMMIT
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, STRING, decode_value, find, raw_document
from shardwright.wire.request import FIND_AND_MODIFY, Request
from shardwright.wire.transport.cursor import DecodedCursor

logger = get_logger("shardd.transactions")

_PREPARED: Final = "prepared"
_ANY_MEMBER: Final = {"mode": "nearest"}

CHECK_SECONDS: Final = 0.5
"""Interval between look-ups of quiet transactions."""

QUIET_SECONDS: Final = 1.0
"""Quiet time before a transaction is looked up, unless a statement of it has failed."""

_BATCHES: Final[Mapping[str, bytes]] = {"update": b"updates", "delete": b"deletes"}

_POLL_SECONDS: Final = 0.02
"""Maximum first pause before a secondary looks again for prepared transactions; it doubles each time."""

_POLL_SECONDS_MAX: Final = 1.0
"""Maximum pause. The whole wait ends with the time limit of the read, or when its client disconnects."""


class LiveTransaction(NamedTuple):
    """A transaction that is open on mongod; for `session` see `session_keys.session_key`."""

    session: bytes
    number: int
    is_prepared: bool
    lsid: Mapping[str, Any]


async def live_transactions(mongod: LocalMongod) -> list[LiveTransaction]:
    """Return all transactions that are open on mongod."""
    # Transactions between two statements are listed as sessions, the others as operations.
    operations = {"$currentOp": {"allUsers": True, "idleSessions": True}}
    pipeline = [operations, {"$match": {"transaction.parameters.autocommit": False}}]
    listing = {"aggregate": 1, "pipeline": pipeline, "cursor": {}}
    found: list[LiveTransaction] = []
    for operation in await DecodedCursor(mongod.command, "admin", listing).all_documents():
        lsid, transaction = operation["lsid"], operation["transaction"]
        session = session_of_document(lsid)
        number = int(transaction["parameters"]["txnNumber"])
        found.append(LiveTransaction(session, number, "timePreparedMicros" in transaction, lsid))
    return found


async def _still_prepared(mongod: LocalMongod, sessions: Iterable[bytes]) -> set[tuple[bytes, int]]:
    """Return the prepared transactions of some sessions, by session and number."""
    query = {"_id": {"$in": [raw_document(each) for each in sessions]}, "state": _PREPARED}
    return {(session, number) async for session, number, _ in _prepared_entries(mongod, query)}


async def prepared_transactions(mongod: LocalMongod) -> AsyncIterator[tuple[bytes, int, set[str]]]:
    """Yield all prepared transactions: session, number, and the namespaces that they have written to."""
    async for session, number, last in _prepared_entries(mongod, {"state": _PREPARED}):
        yield session, number, await _namespaces_written(mongod, last)


async def _prepared_entries(
    mongod: LocalMongod, query: Mapping[str, Any]
) -> AsyncIterator[tuple[bytes, int, Timestamp]]:
    """Yield session, number, and time of the last oplog entry of some entries of ``config.transactions``."""
    find = {"find": "transactions", "filter": query, "$readPreference": _ANY_MEMBER}
    for entry in await DecodedCursor(mongod.command, "config", find).all_documents():
        yield session_of_document(entry["_id"]), int(entry["txnNum"]), entry["lastWriteOpTime"]["ts"]


async def _namespaces_written(mongod: LocalMongod, last: Timestamp) -> set[str]:
    """Return the namespaces in a transaction's chain of oplog entries, from its last one back."""
    namespaces: set[str] = set()
    while last.time:
        projection = {"o.applyOps.ns": 1, "prevOpTime": 1}
        find = {"find": "oplog.rs", "filter": {"ts": last}, "projection": projection, "$readPreference": _ANY_MEMBER}
        entries = await DecodedCursor(mongod.command, "local", find).all_documents()
        if not entries:
            return namespaces  # older than the oplog, which mongod keeps back to the oldest prepared transaction
        namespaces.update(each["ns"] for each in entries[0]["o"]["applyOps"])
        last = entries[0]["prevOpTime"]["ts"]
    return namespaces


def session_of_document(lsid: Mapping[str, Any]) -> bytes:
    """Return the key of a session in mongod's output."""
    raw = bson.encode(lsid)
    session = session_key(raw, (OBJECT, 0, 0, len(raw)))
    assert session is not None
    return session


class Transactions:
    """The `TermComponent` for multi-document transactions.

    Methods that access mongod raise CommandError if it refuses, and BackendError if it does not answer.

    Attributes:
        gate: closed until the prepared transactions of former terms have been restored.
    """

    def __init__(self, context: ShardContext) -> None:
        self._context = context
        self._mongod = context.mongod
        self.open = OpenTransactions(context.mongod.global_lock)
        self.statements = TransactionStatements(self.open)
        self.endings = TransactionEndings(self.open)
        self.gate = RecoveryGate(lambda: context.is_primary)

    async def begin_term(self, term: int, nursery: trio.Nursery) -> None:
        """Restore the prepared transactions, and abort open ones that are missing from the table."""
        await self._abort_abandoned()
        async for session, number, namespaces in prepared_transactions(self._mongod):
            transaction = self.open.find(session, number) or OpenTransaction(session, number)
            transaction.has_begun = transaction.has_written = transaction.is_prepared = True
            transaction.quiet_since = trio.current_time()
            for namespace in namespaces:
                transaction.enter(self._context.namespace(namespace))
            self.open.add(transaction)
            logger.info("Restored a prepared transaction", number=number, namespaces=sorted(namespaces))
        nursery.start_soon(self._keep_in_line)
        self.gate.open()

    def end_term(self) -> None:
        """Discard all transactions; the next primary restores the prepared ones.

        mongod has aborted the others, unless it was only unreachable. Then the next term begins by aborting them.
        """
        self.gate.close()
        self.open.clear()

    def is_open(self, lsid: Mapping[str, Any], number: int) -> bool:
        """Whether a transaction is open on this shard."""
        return self.open.find(session_of_document(lsid), number) is not None

    async def note_kill(self, request: Request) -> None:
        """Remove the transactions that mongod has ended because of a command that kills sessions.

        A statement in flight may begin such a transaction only now; it is aborted afterwards.

        Args:
            request: the command (`KILLS`), which mongod has executed.

        Raises:
            CommandError: mongod refuses to list the open transactions.
        """
        is_killed = is_killed_by(request)
        killed = [each for each in self.open if not each.is_prepared and is_killed(each.session)]
        for transaction in killed:
            transaction.is_killed = transaction.quiet_since is None
        quiet = [each for each in killed if each.quiet_since is not None]
        if quiet:
            await self._look_up(quiet)

    async def _abort_abandoned(self) -> None:
        """Abort open transactions without an entry, which no critical section would wait for.

        A killed daemon has left them open, or this one, if its mongod was unreachable for a while without stepping
        down. The connections of these transactions are closed, which does not end them.
        """
        for each in await live_transactions(self._mongod):
            if each.is_prepared or self.open.find(each.session, each.number) is not None:
                continue
            logger.info("Aborting a transaction that was left open", number=each.number)
            abort = {"abortTransaction": 1, "lsid": each.lsid, "txnNumber": Int64(each.number), "autocommit": False}
            try:
                await self._mongod.command("admin", abort)
            except CommandError as error:
                if error.code != ErrorCode.NoSuchTransaction:
                    raise

    async def _keep_in_line(self) -> None:
        while True:
            await self.open.wait_any()
            await trio.sleep(CHECK_SECONDS)
            now = trio.current_time()
            quiet = [each for each in self.open if _is_to_be_looked_up(each, now)]
            if quiet:
                try:
                    await self._look_up(quiet)
                except (CommandError, BackendError) as error:
                    logger.warning("Could not look up open transactions", error=str(error))

    async def _look_up(self, quiet: list[OpenTransaction]) -> None:
        """Remove transactions that mongod has ended, and determine which of the others are prepared."""
        asked = trio.current_time()
        prepared = await _still_prepared(self._mongod, [each.session for each in quiet])
        live = {(each.session, each.number) for each in await live_transactions(self._mongod)}
        for transaction in quiet:
            if transaction.quiet_since is None or transaction.quiet_since > asked:
                continue  # one of its commands has been running in between
            identity = (transaction.session, transaction.number)
            transaction.is_prepared, transaction.is_doubtful = identity in prepared, False
            if identity not in prepared and identity not in live:
                self.open.end(transaction)


def _is_to_be_looked_up(transaction: OpenTransaction, now: float) -> bool:
    since = transaction.quiet_since
    return since is not None and (transaction.is_doubtful or now - since > QUIET_SECONDS)


def check_not_moved(transaction: OpenTransaction, state: NamespaceState, table: RoutingTable, request: Request) -> None:
    """Refuse an admitted statement on a range that the transaction's snapshot may lack (MigrationConflict)."""
    if transaction.snapshot_time is not None:
        _check_writes(request, table, transaction.snapshot_time)
    elif transaction.is_older_than(state.last_arrival):
        raise CommandError(
            ErrorCode.MigrationConflict,
            f"A range of {state.namespace} has moved to this shard since the transaction began here",
        )


def snapshot_filter(transaction: OpenTransaction, state: NamespaceState, table: RoutingTable) -> OwnershipFilter | None:
    """Return a transaction's ownership filter. Its snapshot still has orphans that have been deleted since.

    Raises:
        CommandError: MigrationConflict, the filter would be too long.
    """
    if not transaction.is_older_than(state.last_deletion) or table.shards == {state.shard}:
        return state.orphans
    found = unowned_filter(table, state.shard)
    if found is None:
        raise CommandError(
            ErrorCode.MigrationConflict,
            f"A range of {state.namespace} has been deleted from this shard since the transaction began here",
        )
    return found


def _check_writes(request: Request, table: RoutingTable, time: Timestamp) -> None:
    """Check that no write of a statement is to a chunk that has moved since a time."""
    if table.newest_valid_after <= pack_timestamp(time):
        return
    for key in _keys_written(request, table):
        moved = table.newest_valid_after if key is None else table.valid_after_of_key(key)
        if moved > pack_timestamp(time):
            raise CommandError(
                ErrorCode.MigrationConflict,
                f"Chunk has moved since timestamp: {_text(time)}, most recently at timestamp: "
                f"{_text(unpack_timestamp(moved))}",
            )


def _keys_written(request: Request, table: RoutingTable) -> Iterator[bytes | None]:
    """Yield the encoded shard key of each write of a statement; None for a write that may concern any key."""
    pattern = table.key_pattern
    if request.name == "insert":
        for document in request.documents(b"documents"):
            yield pattern.key_bytes_of_document(document)
        return
    for query in _queries(request):
        key = exact_shard_key(query, pattern)
        yield None if key is None else encode_key(key)


def _queries(request: Request) -> Iterator[bytes]:
    if request.name in FIND_AND_MODIFY:
        yield request.raw_object(b"query") or EMPTY_DOCUMENT
    elif request.name in _BATCHES:
        for statement in request.documents(_BATCHES[request.name]):
            span = find(statement, b"q")
            yield EMPTY_DOCUMENT if span is None or span[0] != OBJECT else statement[span[2] : span[3]]


def _text(time: Timestamp) -> str:
    return f"Timestamp({time.time}, {time.inc})"


def check_not_moved_since(
    databases: Iterable[DatabaseState], transaction: OpenTransaction | None, read_time: Callable[[], Timestamp | None]
) -> None:
    """Check that an admitted operation on unsharded collections does not read at a time before they moved here.

    Args:
        transaction: the operation's transaction, whose first statement has been admitted.
        read_time: returns the cluster time of the read; None for the present.

    Raises:
        CommandError: SnapshotUnavailable.
    """
    for database in databases:
        moved_at = None if database.entry is None else database.entry.moved_at
        if transaction is not None and transaction.snapshot_time is None:
            if transaction.is_older_than(database.last_arrival):
                raise _unavailable(database, "the transaction began here")
        elif moved_at is not None:
            time = read_time() if transaction is None else transaction.snapshot_time
            if time is not None and time < moved_at:
                raise _unavailable(database, f"Timestamp({time.time}, {time.inc})")


def _unavailable(database: DatabaseState, since: str) -> CommandError:
    return CommandError(
        ErrorCode.SnapshotUnavailable, f"The database {database.name} has moved to this shard since {since}"
    )


def is_snapshot_read(request: Request) -> bool:
    """Whether a request reads from a snapshot outside of transactions."""
    span = request.fields.get(READ_CONCERN)
    if span is None or span[0] != OBJECT or AUTOCOMMIT in request.fields:
        return False
    level = find(request.body, b"level", span[2])
    return level is not None and level[0] == STRING and decode_value(request.body, level) == "snapshot"


class SnapshotReads:
    """Waits of snapshot reads for prepared transactions."""

    def __init__(self, context: ShardContext, transactions: Transactions) -> None:
        self._context = context
        self._transactions = transactions

    async def wait_decided(self, request: Request, namespaces: Collection[str]) -> None:
        """Wait until the transactions that are prepared now, and have used any of some namespaces, are decided.

        Args:
            request: the read; the oplog has already been advanced to its time.

        Raises:
            CommandError: MaxTimeMSExpired; NotWritablePrimary, a step-down came in between; or mongod refuses.
            BackendError: mongod does not answer.
        """
        wait = self._on_primary if self._context.is_primary else self._on_secondary
        with trio.move_on_after(seconds_allowed(request)):
            await wait(namespaces)
            return
        raise CommandError(ErrorCode.MaxTimeMSExpired, "operation exceeded time limit")

    async def _on_primary(self, namespaces: Collection[str]) -> None:
        await self._transactions.gate.wait_open()
        states = [self._context.namespace(name) for name in namespaces]
        for transaction in self._transactions.open:
            if transaction.is_prepared and any(transaction.is_inside(state) for state in states):
                await transaction.wait_ended()

    async def _on_secondary(self, namespaces: Collection[str]) -> None:
        """Poll mongod: only it has the transactions of a secondary, and no command waits for their end."""
        mongod, backoff = self._context.mongod, Backoff(_POLL_SECONDS, _POLL_SECONDS_MAX)
        awaited = {
            (session, number)
            async for session, number, written in prepared_transactions(mongod)
            if not written.isdisjoint(namespaces)
        }
        while awaited:
            await backoff.pause()
            awaited &= await _still_prepared(mongod, [session for session, _ in awaited])
