"""The meaning of oplog entries for the unsharded collections of one database. Pure: bytes in, values out.

The formats of entries are described in `shardd.migration.source.oplog_entries`.
"""

from typing import Any, Final

from bson.binary import Binary

from shardwright.shardd.local_mongod.reserved_session_ids import RESERVED_SESSION_IDS
from shardwright.shardd.migration.source.oplog_entries import (
    MARKER_FIELD,
    OPERATION_AT,
    UUID_SUBTYPE,
    EntryKind,
    OplogEntry,
    previous_time,
    text_of,
    unpack_uint64,
)
from shardwright.shardd.session_history.database_history import names_in
from shardwright.wire import rawbson
from shardwright.wire.rawbson import Span

UUID_BYTES: Final = 16


class WatchedDatabase:
    """The database whose changes are followed (see `shardd.migration.source.oplog_entries.Watched`).

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
        time = int(unpack_uint64(raw, fields[b"ts"][2])[0])
        operation = raw[fields[b"op"][2] + OPERATION_AT]
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
        name = next(iter(content))
        previous = previous_time(raw, fields)
        if name == b"commitTransaction":
            return OplogEntry(raw, fields, time, EntryKind.COMMIT, previous)
        if name == b"applyOps":
            if b"partialTxn" in content or b"prepare" in content:
                return OplogEntry(raw, fields, time, EntryKind.OTHER, previous)
            return OplogEntry(raw, fields, time, EntryKind.COMMIT if previous else EntryKind.OPERATIONS, previous)
        if text_of(raw, fields[b"ns"]).startswith(self._prefix):
            self.changes += 1
        return OplogEntry(raw, fields, time, EntryKind.OTHER, 0)

    def _touched(self, raw: bytes, fields: dict[bytes, Span]) -> list[bytes]:
        operation = raw[fields[b"op"][2] + OPERATION_AT]
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
