"""The components that a recipient works with, besides the context."""

from dataclasses import dataclass

from shardwright.shardd.local_mongod.reserved_sessions import ReservedSessions
from shardwright.shardd.migration.client_load import ClientLoad
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.shardd.session_history.table import HistoryTable


@dataclass(frozen=True, slots=True)
class RecipientPeers:
    """Components of this shard daemon.

    Attributes:
        range_deletions: this shard's range deletions.
        sessions: the reserved sessions in which documents are written, so that users' change streams do not show them.
        history_table: stores the session history.
        client_load: how busy clients keep this daemon.
    """

    range_deletions: RangeDeletions
    sessions: ReservedSessions
    history_table: HistoryTable
    client_load: ClientLoad
