"""Statements of transactions on ranges and databases that have moved since the transaction began.

A transaction reads from a snapshot. On the recipient of a range, an older snapshot lacks the documents, so the range
would be found empty. A transaction that reads at a cluster time also writes by the placement of that time, when another
shard may have owned the range.

While the unsharded collections of a database are copied, they are incomplete here. An older snapshot shows this
incomplete state, and no shard has the former state any more.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from bson.timestamp import Timestamp

from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.metadata.namespace_state import NamespaceState
from shardwright.shardd.orphans.ownership_filter import OwnershipFilter, unowned_filter
from shardwright.shardd.transactions.open_transactions import OpenTransaction
from shardwright.sharding.key_order import encode_key
from shardwright.sharding.routing_table import RoutingTable
from shardwright.sharding.targeting.exact_key import exact_shard_key
from shardwright.sharding.timestamps import pack_timestamp, unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import EMPTY_DOCUMENT, OBJECT, find
from shardwright.wire.request import Request

_BATCHES: Final[Mapping[str, bytes]] = {"update": b"updates", "delete": b"deletes"}
_FIND_AND_MODIFY: Final = frozenset({"findAndModify", "findandmodify"})


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
    if request.name in _FIND_AND_MODIFY:
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
