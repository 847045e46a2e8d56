"""The meaning of oplog entries for one collection, or for a database's unsharded ones. Pure: bytes in, values out.

These are the formats that mongod 6.0 writes (each was observed on 6.0.5):

* ``i``, ``u``, ``d`` have ``ns`` and ``ui``. The id is ``o._id`` of an insert or a delete, and ``o2._id`` of an update,
  whose ``o`` may be just a delta. Only an insert has the shard key, so only inserts can be known to be in the range.
* An atomic ``applyOps`` command is one ``c`` entry on ``admin.$cmd`` with ``o.applyOps``, whose operations each have
  the ``ui`` that mongod adds; nested ones are logged flat. It has no ``prevOpTime``.
* A transaction is such an entry too, with ``lsid``, ``txnNumber`` and a ``prevOpTime``, which is ``Timestamp(0, 0)`` in
  its first or only entry. A long one is a chain: all entries but the last have ``partialTxn: true``, the last has
  ``count``, and each points back at the previous one. The last may well contain no write to the collection.
* A prepared transaction has ``prepare: true`` in its last entry. It takes effect only with ``{commitTransaction: 1,
  commitTimestamp}``, whose ``prevOpTime`` points at that entry, if ``{abortTransaction: 1}`` does not end it.
* Transactions of retryable internal sessions look the same, with ``txnNumber`` and ``txnUUID`` in ``lsid`` and a
  ``stmtId`` in each operation.
* Commands on a collection are ``c`` entries on ``<db>.$cmd`` with its ``ui``: ``drop`` (dropDatabase logs one for each
  collection), ``renameCollection``, ``collMod``, ``dropIndexes``, ``startIndexBuild`` and so on. A rename onto a
  collection has the ``ui`` of the renamed collection, and the replaced one's in ``o.dropTarget``.
* ``n`` entries with the collection's ``ns`` matter only to the session history.

`WatchedCollection` and `WatchedDatabase` are the two kinds of `Watched`: each decides which entries concern its move.
"""

from dataclasses import dataclass
from enum import Enum, auto
from struct import Struct
from typing import Any, Final, Protocol
from uuid import UUID

from bson.binary import Binary

from shardwright.daemon.users import RESERVED_SESSION_IDS
from shardwright.shardd.session_history.oplog_history import names_in
from shardwright.sharding.chunks import ChunkRange
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire import rawbson
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import Span

MARKER_FIELD: Final = "migrationFollower"
"""The field of a follower's marker, a no-op that shows its progress; its value is the migration session id."""

UUID_SUBTYPE: Final = b"\x10\x00\x00\x00\x04"
"""The bytes before the 16 bytes of a UUID in the value of its element."""

_NO_TIME: Final = 0
_OPERATION_AT: Final = 4
"""Offset of a string's text, which follows its length."""

_unpack_uint64 = Struct("<Q").unpack_from

_LOST_WITH: Final = frozenset({b"drop", b"renameCollection"})

UUID_BYTES: Final = 16


class EntryKind(Enum):
    """The meaning of an entry for the watched collection.

    Attributes:
        WRITE: it is a write to the collection.
        OPERATIONS: it contains writes in ``o.applyOps`` that take effect with this entry.
        COMMIT: it commits the transaction's previous entries, and its own ``o.applyOps`` if it has any.
        NOOP: it changes no document, but belongs to the collection's session history.
        OTHER: it can be ignored.
    """

    WRITE = auto()
    OPERATIONS = auto()
    COMMIT = auto()
    NOOP = auto()
    OTHER = auto()


@dataclass(frozen=True, slots=True)
class OplogEntry:
    """One entry.

    Attributes:
        fields: its top-level elements.
        time: its time, packed.
        previous: the time of the same transaction's previous entry, packed; 0 if there is none.
    """

    raw: bytes
    fields: dict[bytes, Span]
    time: int
    kind: EntryKind
    previous: int


class Watched(Protocol):
    """The subject of an oplog follower."""

    def filter(self) -> dict[str, Any]:
        """Return a query for relevant entries."""

    def operations_filter(self) -> dict[str, Any]:
        """Return a query for entries whose ``o.applyOps`` has relevant writes."""

    def read(self, raw: bytes) -> OplogEntry:
        """Classify an entry."""

    def touched_by(self, entry: OplogEntry) -> list[bytes]:
        """Return the ids of changed documents, to be queued for an entry of a write."""


class WatchedCollection:
    """The collection and the range whose changes are followed."""

    def __init__(
        self, namespace: Namespace, collection_uuid: UUID, pattern: ShardKeyPattern, range: ChunkRange, session_id: str
    ) -> None:
        self._namespace = str(namespace)
        self._raw_namespace = self._namespace.encode()
        self._uuid = Binary.from_uuid(collection_uuid)
        self._raw_uuid = UUID_SUBTYPE + collection_uuid.bytes
        self._pattern = pattern
        self._range = range
        self._session_id = session_id

    def filter(self) -> dict[str, Any]:
        """Return a query for relevant entries, so that mongod need not send most of the oplog.

        Of a chain it selects only the last entry. It leaves out the writes of reserved sessions, which are not made for
        clients: a donor's reserved sessions delete orphans, of other ranges.
        """
        reserved = [Binary.from_uuid(session_id) for session_id in RESERVED_SESSION_IDS]
        return {
            "lsid.id": {"$nin": reserved},
            "o.partialTxn": {"$ne": True},
            "$or": [
                {"ns": self._namespace},
                {"ui": self._uuid},
                {"op": "c", **self.operations_filter()},
                {"op": "c", "o.count": {"$exists": True}},
                {"op": "c", "o.commitTransaction": {"$exists": True}},
                {"op": "c", "o.dropTarget": self._uuid},
                {"op": "n", f"o.{MARKER_FIELD}": self._session_id},
            ],
        }

    def operations_filter(self) -> dict[str, Any]:
        """Return a query for entries whose ``o.applyOps`` has writes to the collection."""
        return {"o.applyOps.ui": self._uuid}

    def read(self, raw: bytes) -> OplogEntry:
        """Classify an entry.

        Raises NamespaceNotFound if the collection was dropped or renamed, and Interrupted if its options or indexes
        changed, as on MongoDB's donors.
        """
        fields = rawbson.index(raw)
        time = int(_unpack_uint64(raw, fields[b"ts"][2])[0])
        operation = raw[fields[b"op"][2] + _OPERATION_AT]
        if operation in b"iud":
            kind = EntryKind.WRITE if self._is_watched(raw, fields) else EntryKind.OTHER
            return OplogEntry(raw, fields, time, kind, _NO_TIME)
        if operation == ord("n"):
            is_own = text_of(raw, fields[b"ns"]) == self._raw_namespace
            return OplogEntry(raw, fields, time, EntryKind.NOOP if is_own else EntryKind.OTHER, _NO_TIME)
        return self._read_command(raw, fields, time)

    def touched_by(self, entry: OplogEntry) -> list[bytes]:
        """Return the ids of the documents in the range that an entry may have changed.

        Returns:
            ``_id`` elements, the form of `shardd.migration.donor.oplog_follower.TouchedIds`.

        Raises:
            CommandError: ShardKeyNotFound, an inserted document has an array for a shard key; or as for `read`.
        """
        if entry.kind is EntryKind.WRITE:
            touched = self._touched(entry.raw, entry.fields)
            return [] if touched is None else [touched]
        operations = rawbson.find(entry.raw, b"applyOps", entry.fields[b"o"][2])
        if operations is None:
            return []
        found = []
        for operation in rawbson.array_documents(entry.raw, operations):
            fields = rawbson.index(operation)
            if not self._is_watched(operation, fields):
                continue
            if operation[fields[b"op"][2] + _OPERATION_AT] == ord("c"):
                self._refuse(operation, fields)
            touched = self._touched(operation, fields)
            if touched is not None:
                found.append(touched)
        return found

    def _read_command(self, raw: bytes, fields: dict[bytes, Span], time: int) -> OplogEntry:
        content = rawbson.index(raw, fields[b"o"][2])
        if (of_transaction := _transaction_entry(raw, fields, time, content)) is not None:
            return of_transaction
        if self._is_watched(raw, fields):
            self._refuse(raw, fields)
        target = content.get(b"dropTarget")
        if target is not None and raw[target[2] : target[3]] == self._raw_uuid:
            raise self._lost("another collection was renamed to its name")
        return OplogEntry(raw, fields, time, EntryKind.OTHER, _NO_TIME)

    def _refuse(self, raw: bytes, fields: dict[bytes, Span]) -> None:
        name = next(iter(rawbson.spans(raw, fields[b"o"][2])))[0]
        if name in _LOST_WITH:
            raise self._lost(name.decode())
        raise CommandError(
            ErrorCode.Interrupted,
            f"Migration of {self._namespace} aborted because its options or indexes change: {name.decode()}",
        )

    def _lost(self, how: str) -> CommandError:
        return CommandError(
            ErrorCode.NamespaceNotFound, f"Collection {self._namespace} disappeared while it was being migrated: {how}"
        )

    def _is_watched(self, raw: bytes, fields: dict[bytes, Span]) -> bool:
        uuid = fields.get(b"ui")
        return uuid is not None and raw[uuid[2] : uuid[3]] == self._raw_uuid

    def _touched(self, raw: bytes, fields: dict[bytes, Span]) -> bytes | None:
        """Return the id of a written document; None if it was inserted outside the range."""
        operation = raw[fields[b"op"][2] + _OPERATION_AT]
        _, _, start, end = fields[b"o2" if operation == ord("u") else b"o"]
        document = raw[start:end]
        if operation == ord("i") and not self._range.contains_key(self._pattern.key_bytes_of_document(document)):
            return None
        identity = rawbson.find(document, b"_id")
        assert identity is not None, "mongod logs an _id with every write"
        return document[identity[1] : identity[3]]


def _previous_time(raw: bytes, fields: dict[bytes, Span]) -> int:
    """Return the time of the same transaction's previous entry, packed; 0 if there is none."""
    span = fields.get(b"prevOpTime")
    time = None if span is None else rawbson.find(raw, b"ts", span[2])
    return _NO_TIME if time is None else int(_unpack_uint64(raw, time[2])[0])


def _transaction_entry(
    raw: bytes, fields: dict[bytes, Span], time: int, content: dict[bytes, Span]
) -> OplogEntry | None:
    """Classify a command that is a part of a transaction; None for another command, whose fields are ``content``."""
    name = next(iter(content))
    if name not in (b"commitTransaction", b"applyOps"):
        return None
    previous = _previous_time(raw, fields)
    if name == b"applyOps" and (b"partialTxn" in content or b"prepare" in content):
        kind = EntryKind.OTHER
    elif name == b"commitTransaction" or previous:
        kind = EntryKind.COMMIT
    else:
        kind = EntryKind.OPERATIONS
    return OplogEntry(raw, fields, time, kind, previous)


def text_of(raw: bytes, span: Span) -> bytes:
    """Return the text of a string."""
    return raw[span[2] + 4 : span[3] - 1]


class WatchedDatabase:
    """The database whose changes are followed (see `Watched`).

    A changed document is queued as the 16 bytes of its collection's UUID, followed by its ``_id`` element.

    Args:
        session_id: the session id of the move.

    Attributes:
        collections: the UUIDs of the collections whose documents are queued, 16 bytes each.
        changes: number of entries so far that may have created, dropped, renamed or altered a collection or view.
    """

    def __init__(self, db: str, session_id: str) -> None:
        self.collections: set[bytes] = set()
        self.changes = 0
        self._names = names_in(db)
        self._prefix = f"{db}.".encode()
        self._views = f"{db}.system.views".encode()
        self._session_id = session_id

    def filter(self) -> dict[str, Any]:
        """Return a query for relevant entries; of a chain only the last entry (see `WatchedCollection.filter`)."""
        reserved = [Binary.from_uuid(session_id) for session_id in RESERVED_SESSION_IDS]
        return {
            "lsid.id": {"$nin": reserved},
            "o.partialTxn": {"$ne": True},
            "$or": [
                {"ns": self._names},
                {"op": "c", **self.operations_filter()},
                {"op": "c", "o.count": {"$exists": True}},
                {"op": "c", "o.commitTransaction": {"$exists": True}},
                {"op": "n", f"o.{MARKER_FIELD}": self._session_id},
            ],
        }

    def operations_filter(self) -> dict[str, Any]:
        """Return a query for entries whose ``o.applyOps`` has writes to the database."""
        return {"o.applyOps": {"$elemMatch": {"ns": self._names}}}

    def read(self, raw: bytes) -> OplogEntry:
        """Classify an entry."""
        fields = rawbson.index(raw)
        time = int(_unpack_uint64(raw, fields[b"ts"][2])[0])
        operation = raw[fields[b"op"][2] + _OPERATION_AT]
        if operation == ord("c"):
            return self._read_command(raw, fields, time)
        kind = EntryKind.NOOP if operation == ord("n") else EntryKind.WRITE
        name = text_of(raw, fields[b"ns"])
        if name == self._views:
            self.changes += 1
        return OplogEntry(raw, fields, time, kind if name.startswith(self._prefix) else EntryKind.OTHER, 0)

    def touched_by(self, entry: OplogEntry) -> list[bytes]:
        """Return the ids of documents of watched collections that an entry may have changed."""
        if entry.kind is EntryKind.WRITE:
            return self._touched(entry.raw, entry.fields)
        operations = rawbson.find(entry.raw, b"applyOps", entry.fields[b"o"][2])
        if operations is None:
            return []
        touched = []
        for operation in rawbson.array_documents(entry.raw, operations):
            touched += self._touched(operation, rawbson.index(operation))
        return touched

    def _read_command(self, raw: bytes, fields: dict[bytes, Span], time: int) -> OplogEntry:
        content = rawbson.index(raw, fields[b"o"][2])
        if (of_transaction := _transaction_entry(raw, fields, time, content)) is not None:
            return of_transaction
        if text_of(raw, fields[b"ns"]).startswith(self._prefix):
            self.changes += 1
        return OplogEntry(raw, fields, time, EntryKind.OTHER, 0)

    def _touched(self, raw: bytes, fields: dict[bytes, Span]) -> list[bytes]:
        operation = raw[fields[b"op"][2] + _OPERATION_AT]
        uuid = fields.get(b"ui")
        if operation == ord("c"):
            self.changes += 1
            return []
        if uuid is None or not raw.startswith(UUID_SUBTYPE, uuid[2]):
            return []
        collection = raw[uuid[3] - UUID_BYTES : uuid[3]]
        if collection not in self.collections:
            return []
        _, _, start, _ = fields[b"o2" if operation == ord("u") else b"o"]
        identity = rawbson.find(raw, b"_id", start)
        assert identity is not None, "mongod logs an _id with every write"
        return [collection + raw[identity[1] : identity[3]]]
