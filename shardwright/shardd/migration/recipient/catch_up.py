"""Applying what has changed on the donor since the clone began.

A batch names the documents that have left the range, and contains the current versions of others. The local copies of
both are deleted first, then the new versions are inserted: two documents may have swapped a unique value. A document
of another range with the same ``_id``, which may be this shard's own, is never touched: deletes are restricted to shard
keys in the range. None of this has to be atomic, since the range is not visible yet, and a batch may be applied twice.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from shardwright.daemon.fail_points import FailPoints
from shardwright.shardd.context.fail_point_names import FAIL_MIGRATION_RECEIVED_OUT_OF_RANGE_OPERATION
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSession, ReservedSessions
from shardwright.shardd.migration.recipient.clone import cut
from shardwright.shardd.migration.recipient.donor_link import Modifications
from shardwright.shardd.migration.recipient.range_writer import RangeWriter
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.range_deleter.batches import delete_statement
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

_DELETED_AT_ONCE: Final = 1_000


class Modifier:
    """Applies the modifications of one migration.

    Args:
        sessions: the reserved sessions in which documents are written.
        fail_points: the daemon's fail points.
        request: the request to receive the range.
        writer: inserts documents.
        default_collation: the collection's default collation.
    """

    def __init__(
        self,
        sessions: ReservedSessions,
        fail_points: FailPoints,
        request: ReceiveRequest,
        writer: RangeWriter,
        default_collation: Mapping[str, Any] | None,
    ) -> None:
        self._sessions = sessions
        self._fail_points = fail_points
        self._request = request
        self._writer = writer
        self._default_collation = default_collation

    async def apply(self, modifications: Modifications) -> int:
        """Apply a batch; returns the number of documents in it.

        Raises:
            CommandError: a document of another range has the same ``_id``, or mongod refuses.
            BackendError: mongod does not answer.
        """
        reload = [document for document in modifications.reload if self._is_in_range(document)]
        self._writer.replace(modifications.deleted)
        self._writer.replace(modifications.reload)
        async with self._sessions.session() as session:
            await self._delete(session, [*modifications.deleted, *modifications.reload])
            for documents, _ in cut([*self._writer.take_postponed(), *reload]):
                await self._writer.insert(session, documents)
        return len(modifications.deleted) + len(modifications.reload)

    async def complete(self) -> None:
        """Insert the postponed documents, after all batches have been applied.

        Raises:
            CommandError: DuplicateKey, some still cannot be inserted.
            BackendError: mongod does not answer.
        """
        if self._writer.has_postponed:
            await self.apply(Modifications([], [], None))
            self._writer.check_complete()

    async def _delete(self, session: ReservedSession, documents: Sequence[bytes]) -> None:
        request = self._request
        for begin in range(0, len(documents), _DELETED_AT_ONCE):
            ids = documents[begin : begin + _DELETED_AT_ONCE]
            statement = delete_statement(ids, request.pattern, request.range, self._default_collation)
            await session.delete(request.namespace, [statement])

    def _is_in_range(self, document: bytes) -> bool:
        if self._writer.is_member(document):
            return True
        if self._fail_points.should_fail(FAIL_MIGRATION_RECEIVED_OUT_OF_RANGE_OPERATION) is not None:
            raise CommandError(
                ErrorCode.InternalError,
                f"Migration received a document out of range: {document_text(document)} is not in "
                f"{self._request.range} of {self._request.namespace}",
            )
        return False
