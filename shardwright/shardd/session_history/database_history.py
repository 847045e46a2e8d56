"""Session history of the unsharded collections of a database that moves to another shard."""

from collections.abc import Callable, Mapping
from typing import Any

from shardwright.shardd.session_history.oplog_history import HistoryReader, executed_statements, text_of
from shardwright.shardd.session_history.statement import INCOMPLETE_HISTORY, ExecutedStatement, SessionWrite
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.rawbson import Span

ID_PATTERN = ShardKeyPattern.from_mapping({"_id": 1})
"""The shard key assumed for unsharded collections."""

ALL_IDS = ChunkRange.of(ID_PATTERN, ID_PATTERN.global_min(), ID_PATTERN.global_max())

_UUID_AT = 5
"""Offset of a UUID in the value of its element."""


class DatabaseHistoryReader(HistoryReader):
    """A reader of oplog entries for the move of a database.

    The copies have other UUIDs, under which the recipient must find the statements.

    Args:
        is_moved: whether a collection moves, given its namespace.
        copy_of: maps a collection's UUID to its copy's, both 16 bytes.
    """

    def __init__(self, db: str, is_moved: Callable[[str], bool], copy_of: Callable[[bytes], bytes]) -> None:
        super().__init__(Namespace(db), b"", ID_PATTERN, ALL_IDS)
        self._is_moved = is_moved
        self._copy_of = copy_of

    def inherited_filter(self) -> dict[str, Any]:
        """Return a query for statements received in earlier migrations that may concern this one."""
        return {"$or": [{"nss": names_in(self.namespace)}, {"_id.stmtId": INCOMPLETE_HISTORY}]}

    def entries_filter(self) -> dict[str, Any]:
        """Return a query for the oplog entries of the collections' writes."""
        names = names_in(self.namespace)
        return {"$or": [{"ns": names}, {"o.applyOps": {"$elemMatch": {"ns": names}}}]}

    def inherited(self, statement: ExecutedStatement) -> ExecutedStatement:
        """Convert a statement received in an earlier migration to the form that the recipient stores."""
        if statement.is_incomplete_history:
            return statement
        return statement._replace(collection_uuid=self._copy_of(statement.collection_uuid), key=None)

    def concerns(self, statement: ExecutedStatement) -> bool:
        """Whether a statement received in an earlier migration may be retried on the recipient of this one."""
        return statement.is_incomplete_history or self._is_about(statement.namespace)

    def _statements(
        self,
        raw: bytes,
        fields: Mapping[bytes, Span],
        write: SessionWrite,
        executed_at: int,
        *,
        is_alone: bool,
        has_left: bool = False,
    ) -> tuple[ExecutedStatement, ...]:
        uuid = fields[b"ui"]
        copy = self._copy_of(raw[uuid[2] + _UUID_AT : uuid[3]])
        collection = (text_of(raw, fields[b"ns"]), copy)
        return executed_statements(raw, fields, write, executed_at, collection, key=None, is_alone=is_alone)

    def _is_about(self, namespace: str) -> bool:
        return self._is_moved(namespace)


def names_in(db: str) -> dict[str, str]:
    """Return a query for the namespaces of a database's collections."""
    return {"$gte": f"{db}.", "$lt": f"{db}/"}  # the slash is the character after the dot
