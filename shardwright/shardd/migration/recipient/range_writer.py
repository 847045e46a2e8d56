"""Inserting the range's documents while they change on the donor.

The clone is not a snapshot. A document may arrive with a unique value that another one had when *that* was read, or for
a second time, with another shard key. It is postponed, because modifications that are still to come make room for it or
replace it; after each batch of them it is tried again. No modification makes room where a document of another range,
possibly this shard's own, has the same ``_id``: that fails the migration, as in MongoDB.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod.cursors import all_documents
from shardwright.shardd.local_mongod.reserved_sessions import ReservedSession
from shardwright.shardd.local_mongod.write_concern import LOCAL_WRITE_CONCERN
from shardwright.shardd.migration.recipient.received_range import RangeMembership
from shardwright.shardd.migration.recipient.request import ReceiveRequest
from shardwright.sharding.bson_text import document_text
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.rawbson import OBJECT, find, raw_document, wrap_value

logger = get_logger("shardd.migration.recipient")

_POSTPONED_BYTES_MAX: Final = 64 * 1024 * 1024


class RangeWriter:
    """Inserts documents of one migration.

    Args:
        mongod: the local mongod.
        request: the request to receive the range.
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
        """Insert documents in one transaction; returns those that were not postponed.

        Raises:
            CommandError: DuplicateKey, a document of another range has the same ``_id``, or too many are postponed; or
                any other error of an insert.
            BackendError: mongod does not answer.
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
        """Check that no document is postponed any more, after the last modification.

        Raises:
            CommandError: DuplicateKey, one still is.
        """
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
        """The local document with the ``_id`` of another one, projected to the fields that the check needs."""
        kind, value = _id_of(document)
        filter_ = raw_document(wrap_value(OBJECT, wrap_value(kind, value, b"$eq"), b"_id"))
        arguments = {"filter": filter_, "projection": self._membership.projection, "limit": 1, "singleBatch": True}
        return next(iter(await all_documents(self._mongod, self._namespace, arguments)), None)


def raw_id(document: bytes) -> bytes:
    """The ``_id`` of a raw document: its type and value, as a dictionary key."""
    kind, value = _id_of(document)
    return bytes((kind,)) + value


def _id_of(document: bytes) -> tuple[int, bytes]:
    span = find(document, b"_id")
    if span is None:
        raise CommandError(ErrorCode.NoSuchKey, "the donor sent a document without an _id")
    return span[0], document[span[2] : span[3]]
