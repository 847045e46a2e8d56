"""Retryable writes in oplog entries, of a collection or of a database that moves. Pure: bytes in, values out.

mongod 6.0.5 writes them as follows. A statement of a retryable write is an entry ``i``, ``u`` or ``d`` with ``lsid``,
``txnNumber``, ``stmtId`` (an int, or an array of ints) and ``prevOpTime``. The latter points at the previous statement
with the same transaction number, and is ``Timestamp(0, 0)`` for the first. A findAndModify that returns a document has
``needsRetryImage: preImage | postImage``, with the image in ``config.image_collection``. If
``storeFindAndModifyImagesInSideCollection`` is off, it has ``preImageOpTime`` or ``postImageOpTime`` instead. These
point at a no-op entry whose ``o`` is the image. A transaction is a command entry (``c``) with ``lsid`` and
``txnNumber`` but without ``stmtId``. If it executes a retryable write, its operations have a ``stmtId``.
"""

from collections.abc import Callable, Mapping
from struct import Struct
from typing import Any, Final, NamedTuple

from shardwright.daemon.users import RESERVED_SESSION_IDS
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

ID_PATTERN = ShardKeyPattern.from_mapping({"_id": 1})
"""The shard key assumed for unsharded collections."""

ALL_IDS = ChunkRange.of(ID_PATTERN, ID_PATTERN.global_min(), ID_PATTERN.global_max())

_UUID_AT = 5
"""Offset of a UUID in the value of its element."""


class ImageReference(NamedTuple):
    """Location of the image of a findAndModify.

    Attributes:
        kind: `PRE_IMAGE` or `POST_IMAGE`.
        time: packed time of the no-op entry that contains it; 0 if it is in ``config.image_collection``.
    """

    kind: str
    time: int


class HistoryEntry(NamedTuple):
    """An oplog entry of a session.

    Attributes:
        write: its session and transaction number. For an internal transaction that executes a retryable write, these
            are the transaction's; the statements have the write's.
        previous: the time of the previous entry with the same transaction number, packed; 0 for the first.
        statements: the executed statements, one for each statement id; none if they do not concern the range. A
            findAndModify's statement still lacks its image.
        image: the location of that image, if there should be one.
        is_child: whether an internal transaction executes a retryable write.
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
        """Return a copy without the inserted document, for an insert that is one of several statements.

        Only a single statement can be a findAndModify with an upsert, whose retry needs the document.
        """
        return self._replace(statements=tuple(each._replace(image=None) for each in self.statements))

    def uncertain(self) -> "HistoryEntry":
        """Return a replacement for an entry of a transaction that may have been aborted; it makes retries fail."""
        first = self.statements[0]
        return self._replace(statements=(incomplete_history(first.write, first.last_use),), image=None)


class HistoryReader:
    """A reader of oplog entries for a migration.

    A retry names its collection, so statements are selected by name. Resharding keeps the name, but not the UUID.

    Statements about documents that are certainly outside the range are left out. This is certain for inserts, which are
    logged with the whole document, and for all statements if the shard key consists of parts of ``_id``. Otherwise the
    oplog does not contain the shard key by which an update or delete found its document, and the key may have changed.

    Args:
        collection_uuid: its UUID, 16 bytes.
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
        """Interpret an entry; None if it has no session, or a session without history."""
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
        """Interpret an entry of an internal transaction that executes a retryable write, or commits it."""
        executed_at = unpack_int64(raw, fields[b"wall"][2])[0]
        statements: list[ExecutedStatement] = []
        image = None
        if text_of(raw, fields[b"op"]) == "c":
            for operation, found in numbered_operations(raw, fields):
                is_here = text_of(operation, found[b"op"]) in _OPERATIONS
                if is_here and self._is_about(text_of(operation, found[b"ns"])):
                    # The write was routed by another shard key: the key that its document had, or was to get.
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
        """Return a query for statements received in earlier migrations that may concern this one."""
        return {"$or": [{"nss": self.namespace}, {"_id.stmtId": INCOMPLETE_HISTORY}]}

    def entries_filter(self) -> dict[str, Any]:
        """Return a query for the oplog entries of the collection's writes."""
        return {"$or": [{"ns": self.namespace}, {"o.applyOps.ns": self.namespace}]}

    def inherited(self, statement: ExecutedStatement) -> ExecutedStatement:
        """Convert a statement received in an earlier migration to the form that the recipient stores."""
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
        """Return the shard key of a statement received in an earlier migration; None if the key was changed since.

        Resharding changes it with the UUID, and refining adds fields.
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
                key = None  # not a valid shard key: written before the collection was sharded
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
    """Return the statements of one insert, update or delete in the oplog, one for each statement id.

    Args:
        executed_at: time of execution, in milliseconds since 1970.
        collection: the collection's name and UUID on the recipient.
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
    """Return the text of a string element."""
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
    """Return the packed time in an optime ``{ts, t}``."""
    time = find(raw, b"ts", span[2])
    assert time is not None
    return int(_unpack_uint64(raw, time[2])[0])


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
