"""Reads from snapshots that are older than the move of a database to this shard.

While the unsharded collections of a database are copied, they are incomplete here. Such a snapshot shows them so, and
no shard has them any more as they were then.
"""

from collections.abc import Callable, Iterable

from bson.timestamp import Timestamp

from shardwright.shardd.metadata.database_state import DatabaseState
from shardwright.shardd.transactions.open_transaction import OpenTransaction
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError


def check_not_moved_since(
    databases: Iterable[DatabaseState], transaction: OpenTransaction | None, read_time: Callable[[], Timestamp | None]
) -> None:
    """Check that an admitted operation on unsharded collections does not read from before they came here.

    Args:
        databases: those of the collections.
        transaction: the transaction that the operation is a statement of, whose first statement has been admitted.
        read_time: the cluster time at which the operation reads; None if it reads the present.

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
