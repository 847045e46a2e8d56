"""What oplog entries say about retryable writes. Pure: bytes in, values out.

As mongod 6.0.5 writes them: a statement of a retryable write is an entry ``i``, ``u`` or ``d`` with ``lsid``,
``txnNumber`` and ``stmtId`` (an int, or an array of them), and ``prevOpTime``, which points at the previous statement
with the same transaction number and is ``Timestamp(0, 0)`` for the first. A findAndModify that returns a document has
``needsRetryImage: preImage | postImage``, with the image in ``config.image_collection``. If
``storeFindAndModifyImagesInSideCollection`` is off, it has ``preImageOpTime`` or ``postImageOpTime`` instead, which
point at a no-op entry whose ``o`` is the image. A transaction is a command entry (``c``) with ``lsid`` and
``txnNumber`` but without ``stmtId``. If it executes a retryable write, its operations have a ``stmtId``.
"""

from collections.abc import Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

from shardwright.shardd.local_mongod.reserved_session_ids import RESERVED_SESSION_IDS
from shardwright.shardd.session_history.statement import (
    DELETE,
    INCOMPLETE_HISTORY,
    INSERT,
    POST_IMAGE,
    PRE_IMAGE,
    UPDATE,
    ChildTransaction,
    ExecutedStatement,
    SessionWrite,
    incomplete_history,
    numbered_operations,
    session_of,
    unpack_int64,
)
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import ARRAY, Span, decode_value, find, from_elements, index, spans

_OPERATIONS: Final = frozenset({INSERT, UPDATE, DELETE})
_RESERVED_ELEMENTS: Final = frozenset(
    b"\x05id\0\x10\0\0\0\x04" + session_id.bytes for session_id in RESERVED_SESSION_IDS
)
_ID_ELEMENT_BYTES: Final = 25
_unpack_uint64 = Struct("<Q").unpack_from


class ImageReference(NamedTuple):
    """Where the image of a findAndModify is.

    Attributes:
        kind: `PRE_IMAGE` or `POST_IMAGE`.
        time: packed time of the no-op entry that contains it; 0 if it is in ``config.image_collection``.
    """

    kind: str
    time: int


class HistoryEntry(NamedTuple):
    """An entry of a session.

    Attributes:
        write: its session and transaction number, or the transaction's if that executes a retryable write; the write's
            own are in the statements then.
        time: its time, packed.
        previous: the time of the previous entry with the same transaction number, packed; 0 for the first.
        statements: the executed statements, one for each statement id; none if they do not concern the range. A
            findAndModify's statement is still without its image.
        image: where that image is, if there should be one.
        is_child: whether a transaction executes a retryable write.
        is_prepared: whether the transaction of the entry may still be aborted.
    """

    write: SessionWrite
    time: int
    previous: int
    statements: tuple[ExecutedStatement, ...]
    image: ImageReference | None = None
    is_child: bool = False
    is_prepared: bool = False

    def without_document(self) -> "HistoryEntry":
        """A copy without the inserted document, for an insert that is one of several statements.

        Only a single statement can be a findAndModify with an upsert, whose retry needs the document.
        """
        return self._replace(statements=tuple(each._replace(image=None) for each in self.statements))

    def uncertain(self) -> "HistoryEntry":
        """In place of an entry of a transaction that was perhaps aborted: retries must be refused."""
        first = self.statements[0]
        return self._replace(statements=(incomplete_history(first.write, first.last_use),), image=None)


class HistoryReader:
    """Reads entries for a migration.

    A retry names its collection, so the name decides which statements are about it. Resharding keeps it, not the UUID.
    Statements about documents that are certainly outside the range are left out. That is known of inserts, which are
    logged with the whole document, and of all statements if the shard key consists of parts of ``_id``. Otherwise the
    oplog does not contain the shard key with which an update or delete found its document, and it may have changed.

    Args:
        namespace: the collection.
        collection_uuid: its UUID, 16 bytes.
        pattern: its shard key.
        range: the range that moves.
    """

    def __init__(
        self,
        namespace: Namespace,
        collection_uuid: bytes,
        pattern: ShardKeyPattern,
        range: ChunkRange,
    ) -> None:
        self.namespace = str(namespace)
        self.collection_uuid = collection_uuid
        self._pattern = pattern
        self._range = range
        self._is_key_in_id = all(each.path[0] == b"_id" for each in pattern.fields)

    def read(self, raw: bytes) -> HistoryEntry | None:
        """Interpret an entry; None if it belongs to no session, or to one without history."""
        fields = index(raw)
        lsid, number = fields.get(b"lsid"), fields.get(b"txnNumber")
        if lsid is None or number is None:
            return None
        session = session_of(raw, lsid)
        if session is None:
            child = ChildTransaction.read(raw, lsid, unpack_int64(raw, number[2])[0])
            return None if child is None else self._read_child(raw, fields, child)
        if session[4 : 4 + _ID_ELEMENT_BYTES] in _RESERVED_ELEMENTS:
            return None
        write = SessionWrite(session, unpack_int64(raw, number[2])[0])
        time = _unpack_uint64(raw, fields[b"ts"][2])[0]
        op = text_of(raw, fields[b"op"])
        previous = _previous_time(raw, fields)
        if b"stmtId" not in fields:
            statements: tuple[ExecutedStatement, ...] = ()
            if op == "c":
                statements = (incomplete_history(write, unpack_int64(raw, fields[b"wall"][2])[0]),)
            return HistoryEntry(write, time, previous, statements)
        if op not in _OPERATIONS or not self._is_about(text_of(raw, fields[b"ns"])):
            return HistoryEntry(write, time, previous, ())
        executed_at = unpack_int64(raw, fields[b"wall"][2])[0]
        statements = self._statements(raw, fields, write, executed_at, is_alone=not previous)
        return HistoryEntry(write, time, previous, statements, _image_reference(raw, fields) if statements else None)

    def _read_child(self, raw: bytes, fields: Mapping[bytes, Span], child: ChildTransaction) -> HistoryEntry:
        """An entry of a transaction that executes a retryable write, or commits it."""
        executed_at = unpack_int64(raw, fields[b"wall"][2])[0]
        statements: list[ExecutedStatement] = []
        image = None
        if text_of(raw, fields[b"op"]) == "c":
            for operation, found in numbered_operations(raw, fields):
                is_here = text_of(operation, found[b"op"]) in _OPERATIONS
                if is_here and self._is_about(text_of(operation, found[b"ns"])):
                    # The write was routed by another shard key: the one that its document had, or was to have.
                    statements += self._statements(
                        operation, found, child.write, executed_at, is_alone=True, has_left=True
                    )
                    image = image or _image_reference(operation, found)
        return HistoryEntry(
            child.own,
            _unpack_uint64(raw, fields[b"ts"][2])[0],
            _previous_time(raw, fields),
            tuple(statements),
            image if statements else None,
            is_child=True,
            is_prepared=find(raw, b"prepare", fields[b"o"][2]) is not None,
        )

    def inherited_filter(self) -> dict[str, Any]:
        """A query for the statements received in earlier migrations that may concern this one."""
        return {"$or": [{"nss": self.namespace}, {"_id.stmtId": INCOMPLETE_HISTORY}]}

    def entries_filter(self) -> dict[str, Any]:
        """A query for the oplog entries of the collection's writes."""
        return {"$or": [{"ns": self.namespace}, {"o.applyOps.ns": self.namespace}]}

    def inherited(self, statement: ExecutedStatement) -> ExecutedStatement:
        """A statement received in an earlier migration, as the recipient is to store it."""
        if statement.is_incomplete_history:
            return statement
        return statement._replace(collection_uuid=self.collection_uuid, key=self._present_key(statement))

    def concerns(self, statement: ExecutedStatement) -> bool:
        """Whether a statement received in an earlier migration may be retried on the recipient of this one."""
        if statement.is_incomplete_history:
            return True
        if statement.namespace != self.namespace:
            return False
        key = self._present_key(statement)
        return key is None or self._range.contains_key(self._pattern.key_bytes(key))

    def _present_key(self, statement: ExecutedStatement) -> bytes | None:
        """The shard key of a statement received in an earlier migration; None if the collection had another one then.

        It was given the present one with another UUID, by resharding, or with more fields, by refining.
        """
        if statement.key is None or statement.collection_uuid != self.collection_uuid:
            return None
        return statement.key if self._pattern.is_shard_key(statement.key) else None

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
        op = text_of(raw, fields[b"op"])
        subject = fields[b"o2" if op == UPDATE else b"o"]
        document = raw[subject[2] : subject[3]]
        key = None
        if (op == INSERT or self._is_key_in_id) and not has_left:
            try:
                if not self._range.contains_key(self._pattern.key_bytes_of_document(document)):
                    return ()
                key = self._pattern.extract_from_document(document)
            except CommandError:
                key = None  # no valid shard key, as it was written before the collection was sharded
        collection = (self.namespace, self.collection_uuid)
        return executed_statements(raw, fields, write, executed_at, collection, key=key, is_alone=is_alone)

    def _is_about(self, namespace: str) -> bool:
        return namespace == self.namespace


def executed_statements(
    raw: bytes,
    fields: Mapping[bytes, Span],
    write: SessionWrite,
    executed_at: int,
    collection: tuple[str, bytes],
    *,
    key: bytes | None,
    is_alone: bool,
) -> tuple[ExecutedStatement, ...]:
    """The statements of one insert, update or delete in the oplog, one for each statement id.

    Args:
        raw: the entry, or the operation in it.
        fields: its top-level elements.
        write: the retryable write.
        executed_at: when it was executed, in milliseconds since 1970.
        collection: name and UUID of the collection under which the recipient is to find them.
        key: the shard key document of the changed document, if it is known.
        is_alone: whether the write has no earlier statements.
    """
    op = text_of(raw, fields[b"op"])
    inserted_id = image = None
    if op == INSERT:
        subject = fields[b"o"]
        document = raw[subject[2] : subject[3]]
        inserted_id = _id_alone(document)
        image = document if is_alone else None
    return tuple(
        ExecutedStatement(write, each, op, *collection, executed_at, inserted_id, key, image)
        for each in _statement_ids(raw, fields[b"stmtId"])
    )


def text_of(raw: bytes, span: Span) -> str:
    """The text of a string."""
    return raw[span[2] + 4 : span[3] - 1].decode(errors="surrogateescape")


def _statement_ids(raw: bytes, span: Span) -> list[int]:
    if span[0] != ARRAY:
        return [decode_value(raw, span)]
    return [decode_value(raw, each) for _, each in spans(raw, span[2])]


def _id_alone(document: bytes) -> bytes | None:
    span = find(document, b"_id")
    return None if span is None else from_elements(document[span[1] : span[3]])


def _image_reference(raw: bytes, fields: Mapping[bytes, Span]) -> ImageReference | None:
    side = fields.get(b"needsRetryImage")
    if side is not None:
        return ImageReference(decode_value(raw, side), 0)
    for name, kind in ((b"preImageOpTime", PRE_IMAGE), (b"postImageOpTime", POST_IMAGE)):
        if name in fields:
            return ImageReference(kind, _time_in(raw, fields[name]))
    return None


def _previous_time(raw: bytes, fields: Mapping[bytes, Span]) -> int:
    span = fields.get(b"prevOpTime")
    return 0 if span is None else _time_in(raw, span)


def _time_in(raw: bytes, span: Span) -> int:
    """The packed time in an optime ``{ts, t}``."""
    time = find(raw, b"ts", span[2])
    assert time is not None
    return int(_unpack_uint64(raw, time[2])[0])
