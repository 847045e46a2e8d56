"""The outcomes of a batch's statements so far, and the reply that reports them."""

from collections.abc import Iterable
from typing import Any

from shardwright.router.writes.batch import WriteBatch
from shardwright.router.writes.kind import WriteKind
from shardwright.router.writes.merge import merged_write_concern_error, with_index, with_limited_messages
from shardwright.router.writes.reply import WriteReply
from shardwright.wire.error_codes import Category, has_category
from shardwright.wire.errors import RETRYABLE_WRITE_ERROR
from shardwright.wire.rawbson import INT32, element, from_elements, raw_document


class BatchOutcome:
    """The sums and lists of a batch; statements are identified by their position in the client's batch.

    Attributes:
        errors: the entry of ``writeErrors`` for every statement that failed.
    """

    def __init__(self, batch: WriteBatch) -> None:
        self._batch = batch
        self._n = 0
        self._modified = 0
        self._upserted: list[tuple[int, bytes]] = []
        self._concern_errors: list[tuple[str, bytes]] = []
        self._retried: list[int] = []
        self.errors: dict[int, bytes] = {}

    def add(self, shard: str, positions: list[int], reply: WriteReply) -> None:
        """Add a shard's reply to the statements at some positions, except for its item errors."""
        self._n += reply.n
        self._modified += reply.modified
        self._retried += reply.retried_statement_ids
        self._upserted += [(positions[each.index], each.id_element) for each in reply.upserted]
        if reply.write_concern_error is not None:
            self._concern_errors.append((shard, reply.write_concern_error))

    def reply(self) -> dict[str, Any]:
        """The reply of the finished batch, without the fields of every reply."""
        if self._batch.is_unacknowledged:
            return {}
        reply: dict[str, Any] = {}
        if self._batch.kind is WriteKind.UPDATE:
            reply["nModified"] = self._modified
        reply["n"] = self._n
        if self._upserted:
            reply["upserted"] = [_upserted(position, id_element) for position, id_element in sorted(self._upserted)]
        if self.errors:
            reply["writeErrors"] = _write_errors(sorted(self.errors.items()))
        if self._concern_errors and self._tells_of_write_concern:
            concern_error = reply["writeConcernError"] = merged_write_concern_error(self._concern_errors)
            if self._batch.is_retryable and has_category(concern_error["code"], Category.RETRYABLE):
                reply["errorLabels"] = [RETRYABLE_WRITE_ERROR]
        if self._retried and self._batch.is_numbered:
            reply["retriedStmtIds"] = self._retried_in_order()
        return reply

    def _retried_in_order(self) -> list[int]:
        """The ids of the statements that had been executed before, in the order of the client's batch."""
        position_of = {each: position for position, each in enumerate(self._batch.statement_ids())}
        return sorted(self._retried, key=lambda each: position_of.get(each, len(position_of)))

    @property
    def _tells_of_write_concern(self) -> bool:
        """As in MongoDB: for an ordered batch only if all succeeded, for an unordered one if anything did."""
        if self._batch.is_ordered:
            return not self.errors
        return len(self.errors) < len(self._batch.statements)


def _upserted(position: int, id_element: bytes) -> Any:  # noqa: ANN401 - what pymongo copies into a document
    return raw_document(from_elements(element(b"index", INT32, position.to_bytes(4, "little")) + id_element))


def _write_errors(errors: Iterable[tuple[int, bytes]]) -> list[Any]:
    indexed = [with_index(document, position) for position, document in errors]
    return [raw_document(document) for document in with_limited_messages(indexed)]
