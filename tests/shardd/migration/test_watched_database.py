"""Oplog entries about a database that moves."""

from typing import Any
from uuid import uuid4

import bson
from bson.binary import Binary
from bson.timestamp import Timestamp

from shardwright.shardd.migration.donor.oplog_entries import EntryKind, WatchedDatabase

MOVED, OTHER = uuid4(), uuid4()
ID_ELEMENT = b"\x10_id\0\x07\0\0\0"


def watched() -> WatchedDatabase:
    database = WatchedDatabase("d", "d_1")
    database.collections.add(MOVED.bytes)
    return database


def entry(op: str, ns: str, **fields: Any) -> bytes:  # noqa: ANN401 - fields of an oplog entry
    return bson.encode({"ts": Timestamp(5, 1), "op": op, "ns": ns, **fields})


def crud(op: str = "i", ns: str = "d.c", uuid: object = MOVED) -> dict[str, Any]:
    ui = Binary.from_uuid(uuid)  # type: ignore[arg-type]
    o = {"$v": 2} if op == "u" else {"_id": 7, "a": 1}
    return {"op": op, "ns": ns, "ui": ui, "o": o, **({"o2": {"_id": 7}} if op == "u" else {})}


def test_writes_are_queued_with_their_collection() -> None:
    database = watched()
    for op in "iud":
        found = database.read(entry(**crud(op)))
        assert found.kind is EntryKind.WRITE
        assert database.touched_by(found) == [MOVED.bytes + ID_ELEMENT]
    assert database.touched_by(database.read(entry(**crud(uuid=OTHER)))) == []
    assert database.read(entry(**crud(ns="dd.c"))).kind is EntryKind.OTHER
    assert database.changes == 0


def test_transactions_are_read_to_their_commit() -> None:
    database = watched()
    operations = [crud(), crud(uuid=OTHER), crud("d", ns="e.c", uuid=OTHER)]
    first = Timestamp(0, 0)
    whole = database.read(entry("c", "admin.$cmd", o={"applyOps": operations}, prevOpTime={"ts": first, "t": 1}))
    assert whole.kind is EntryKind.OPERATIONS
    assert database.touched_by(whole) == [MOVED.bytes + ID_ELEMENT]
    prepared = entry("c", "admin.$cmd", o={"applyOps": operations, "prepare": True}, prevOpTime={"ts": first, "t": 1})
    assert database.read(prepared).kind is EntryKind.OTHER
    previous = {"ts": Timestamp(4, 9), "t": 1}
    committed = database.read(entry("c", "admin.$cmd", o={"commitTransaction": 1}, prevOpTime=previous))
    assert (committed.kind, committed.previous) == (EntryKind.COMMIT, (4 << 32) + 9)


def test_changes_to_collections_are_counted() -> None:
    database = watched()
    for number, change in enumerate(({"create": "x"}, {"drop": "c"}, {"collMod": "c"}, {"startIndexBuild": "c"}), 1):
        assert database.read(entry("c", "d.$cmd", o=change)).kind is EntryKind.OTHER
        assert database.changes == number
    database.read(entry("c", "dd.$cmd", o={"drop": "c"}))
    assert database.changes == 4
    database.read(entry(**crud(ns="d.system.views", uuid=OTHER)))
    assert database.changes == 5
