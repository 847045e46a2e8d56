"""Writes to the range being received: membership, inserts of documents while they change, deletion of earlier ones.

The clone is not a snapshot. A document may arrive with a unique value that another document had when *that* was read,
or for a second time, with another shard key. It is postponed, because later modifications make room for it or replace
it; after each batch of modifications it is tried again. No modification makes room where a document of another range,
possibly this shard's own, has the same ``_id``: that fails the migration, as in MongoDB.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final
from uuid import UUID

import trio

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.config_collection import LOCAL_WRITE_CONCERN
from shardwright.shardd.local_mongod.range_scan import ShardKeyIndex, all_documents, find_cursor
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSession, ReservedSessions
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.shardd.range_deleter.range_deletions import RangeDeletions
from shardwright.sharding.bson_text import document_text
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import OBJECT, find, raw_document, wrap_value

logger = get_logger("shardd.migration.recipient")

_WAIT_PARAMETER: Final = "receiveChunkWaitForRangeDeleterTimeoutMS"
_DELETED_AT_ONCE: Final = 1_000


class RangeMembership:
    """Decides whether documents belong to a range.

    Attributes:
        projection: the fields needed for the decision.
    """

    def __init__(self, pattern: ShardKeyPattern, wanted: ChunkRange) -> None:
        self._key_bytes_of = pattern.key_bytes_of_document
        self._range = wanted
        # A key of only MaxKey belongs to the last chunk, although it is not below its bound.
        self.projection = {"_id": 1, **{each.path[0].decode(): 1 for each in pattern.fields}}
        self._greatest = pattern.global_max_bytes() if wanted.max_key == pattern.global_max_bytes() else None

    def has(self, document: bytes) -> bool:
        """Whether a raw document, or just its shard key, belongs to the range."""
        key = self._key_bytes_of(document)
        return self._range.contains_key(key) or key == self._greatest


async def wait_range_free(
    mongod: LocalMongod, range_deletions: RangeDeletions, request: ReceiveRequest, collection_uuid: UUID
) -> None:
    """Return when no other range deletion, waiting or running, overlaps the range.

    Raises ExceededTimeLimit after ``receiveChunkWaitForRangeDeleterTimeoutMS``, a mongod parameter.
    """
    namespace = str(request.namespace)
    parameters = await mongod.command("admin", {"getParameter": 1, _WAIT_PARAMETER: 1})
    with trio.move_on_after(parameters[_WAIT_PARAMETER] / 1000):
        known = range_deletions.known
        await known.wait_no_overlap(
            namespace, collection_uuid, request.range, request.pattern, ignoring=request.migration_id
        )
        return
    raise CommandError(
        ErrorCode.ExceededTimeLimit,
        f"Failed to delete orphaned {namespace} range {request.range} :: caused by :: operation exceeded time limit",
    )


async def delete_received(
    mongod: LocalMongod, sessions: ReservedSessions, namespace: Namespace, pattern: ShardKeyPattern, wanted: ChunkRange
) -> int:
    """Delete all documents of a range that this shard has never owned; return how many there were.

    Raises IndexNotFound if no index supports the shard key.
    """
    index = await ShardKeyIndex.find(mongod, namespace, pattern)
    deleted = 0
    async with sessions.session() as session:
        for scan in index.scans(pattern, wanted):
            arguments, options = {**scan, "projection": {"_id": 1}}, {"batchSize": _DELETED_AT_ONCE}
            async with find_cursor(mongod, namespace, arguments, options=options) as cursor:
                async for batch in cursor:
                    statements = [{"q": raw_document(each), "limit": 1} for each in batch.documents()]
                    if statements:
                        deleted += await session.delete(namespace, statements)
    if deleted:
        logger.info("Deleted documents received by an earlier attempt", namespace=str(namespace), documents=deleted)
    return deleted


_POSTPONED_BYTES_MAX: Final = 64 * 1024 * 1024


class RangeWriter:
    """Inserts documents of one migration.

    Args:
        write_concern: the write concern of every transaction.
    """

    def __init__(
        self, mongod: LocalMongod, request: ReceiveRequest, write_concern: Mapping[str, Any] | None = None
    ) -> None:
        self._mongod = mongod
        self._namespace = request.namespace
        self._membership = RangeMembership(request.pattern, request.range)
        self._write_concern = write_concern or LOCAL_WRITE_CONCERN
        self._postponed: dict[bytes, tuple[bytes, CommandError]] = {}
        self._postponed_bytes = 0

    @property
    def has_postponed(self) -> bool:
        """Whether any documents are postponed."""
        return bool(self._postponed)

    def is_member(self, document: bytes) -> bool:
        """Whether a raw document belongs to the range."""
        return self._membership.has(document)

    async def insert(self, session: ReservedSession, documents: Sequence[bytes]) -> Sequence[bytes]:
        """Insert documents in one transaction; return those that were not postponed.

        Raises:
            CommandError: DuplicateKey, a document of another range has the same ``_id``, or too many are postponed; or
                any other error of an insert.
        """
        while documents:
            try:
                await session.insert(self._namespace, documents, write_concern=self._write_concern)
            except CommandError as error:
                if error.code == ErrorCode.WriteConcernFailed:
                    # As in MongoDB, slow secondaries delay a migration but do not fail it.
                    logger.warning(
                        "Secondaries are slow to replicate a migration",
                        namespace=str(self._namespace),
                        error=str(error),
                    )
                    return documents
                position = error.extra.get("index")
                if error.code != ErrorCode.DuplicateKey or not isinstance(position, int):
                    raise
                await self._postpone(documents[position], error)
                documents = [*documents[:position], *documents[position + 1 :]]
            else:
                return documents
        return ()

    def replace(self, documents: Iterable[bytes]) -> None:
        """Discard the postponed versions of documents for which newer modifications have arrived."""
        if self._postponed:
            for document in documents:
                postponed = self._postponed.pop(raw_id(document), None)
                if postponed is not None:
                    self._postponed_bytes -= len(postponed[0])

    def take_postponed(self) -> list[bytes]:
        """Remove and return the postponed documents, for another attempt to insert them."""
        documents = [document for document, _ in self._postponed.values()]
        self._postponed.clear()
        self._postponed_bytes = 0
        return documents

    def check_complete(self) -> None:
        """Check that no document is postponed any more, after the last modification, else raise DuplicateKey."""
        for _, error in self._postponed.values():
            raise error

    async def _postpone(self, document: bytes, error: CommandError) -> None:
        if error.extra.get("keyPattern") == {"_id": 1}:
            other = await self._with_same_id(document)
            if other is not None and not self._membership.has(other):
                raise CommandError(
                    ErrorCode.DuplicateKey,
                    f"cannot migrate chunk, local document {document_text(other)} has same _id as cloned remote "
                    f"document {document_text(wrap_value(*_id_of(document), b'_id'))}",
                    extra=error.extra,
                ) from error
        logger.debug("Postponing a document", namespace=str(self._namespace), error=str(error))
        self._postponed[raw_id(document)] = (document, error)
        self._postponed_bytes += len(document)
        if self._postponed_bytes > _POSTPONED_BYTES_MAX:
            raise error

    async def _with_same_id(self, document: bytes) -> bytes | None:
        """Return the local document with the ``_id`` of another one, projected to the fields that the check needs."""
        kind, value = _id_of(document)
        filter_ = raw_document(wrap_value(OBJECT, wrap_value(kind, value, b"$eq"), b"_id"))
        arguments = {"filter": filter_, "projection": self._membership.projection, "limit": 1, "singleBatch": True}
        return next(iter(await all_documents(self._mongod, self._namespace, arguments)), None)


def raw_id(document: bytes) -> bytes:
    """Return the ``_id`` of a raw document: its type and value, as a dictionary key."""
    kind, value = _id_of(document)
    return bytes((kind,)) + value


def _id_of(document: bytes) -> tuple[int, bytes]:
    span = find(document, b"_id")
    if span is None:
        raise CommandError(ErrorCode.NoSuchKey, "the donor sent a document without an _id")
    return span[0], document[span[2] : span[3]]
