"""Copy and changes may overlap in any order: the result is the source.

A source is played in memory with its history of changes; copies read it at any time not before the changes that have
arrived, and write at any later time. What is folded is executed as a mongod would.
"""

from itertools import pairwise
from typing import Any, Final

import bson
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sync.batches import Batch, Limits, cut
from shardwright.sync.changes import Change, Delta, Mark, id_of, parse, token_time
from shardwright.sync.folding import Folded, Patch, Put, Remove, Reread, folded, parents, updates
from shardwright.sync.pieces import OpenPieces, Piece
from shardwright.wire import rawbson
from tests.sampling import many

NS: Final = "db.a"
Document = dict[str, Any]
World = dict[int, Document]


def key_of(number: int) -> bytes:
    return bson.encode({"_id": number})


def value_of(value: object) -> tuple[int, bytes]:
    document = bson.encode({"": value})
    kind, _, start, end = rawbson.index(document)[b""]
    return kind, document[start:end]


def set_path(document: Document, path: str, value: object) -> None:
    """As ``$set`` of a path that exists or can be created."""
    *outer, last = path.split(".")
    for part in outer:
        if not isinstance(document.get(part), dict):
            document[part] = {}
        document = document[part]
    document[last] = value


def unset_path(document: Document, path: str) -> None:
    *outer, last = path.split(".")
    for part in outer:
        inner = document.get(part)
        if not isinstance(inner, dict):
            return
        document = inner
    document.pop(last, None)


def has_path(document: Document, path: str) -> bool:
    for part in path.split("."):
        if not isinstance(document, dict) or part not in document:
            return False
        document = document[part]
    return True


def apply(folded_changes: list[Folded], target: World, source: World) -> None:
    for each in folded_changes:
        number = bson.decode(each.key)["_id"]
        for operation in each.operations:
            match operation:
                case Put(document):
                    target[number] = bson.decode(document)
                case Remove():
                    target.pop(number, None)
                case Reread():
                    reconcile({number}, target, source)
                case Patch(delta) if number in target:
                    if any(not has_path(target[number], parent) for parent in parents(delta)):
                        reconcile({number}, target, source)
                        continue
                    for update in updates(delta):
                        for path in update.get("$unset", {}):
                            unset_path(target[number], path)
                        for path, value in in_order_of_names(bson.decode(bson.encode(update.get("$set", {})))):
                            set_path(target[number], path, value)


def in_order_of_names(fields: Document) -> list[tuple[str, Any]]:
    """As a mongod adds them."""
    return sorted(fields.items())


def reconcile(numbers: set[int], target: World, source: World) -> None:
    for number in numbers:
        target.pop(number, None)
        if number in source:
            target[number] = bson.decode(bson.encode(source[number]))


class Source:
    """A collection with its history: every state, and the change that led to it."""

    def __init__(self) -> None:
        self.states: list[World] = [{}]
        self.changes: list[Change] = []

    @property
    def now(self) -> World:
        return self.states[-1]

    def write(self, number: int, kind: str, path: str, value: int) -> None:
        world = bson.decode(bson.encode({"w": {str(key): found for key, found in self.now.items()}}))["w"]
        state = {int(key): found for key, found in world.items()}
        time = Timestamp(1, len(self.changes) + 1)
        common: dict[str, Any] = {"time": time, "token": b"", "namespace": NS, "key": key_of(number), "size": 1}
        if kind == "delete":
            if state.pop(number, None) is None:
                return
            change = Change("delete", **common)
        elif kind == "put":
            state[number] = {"_id": number, path.split(".")[0]: value}
            change = Change("insert", document=bson.encode(state[number]), **common)
        elif number not in state:
            return
        elif kind == "set":
            if "." in path and not isinstance(state[number].get(path.split(".")[0]), dict):
                path, new = path.split(".")[0], {path.split(".")[1]: value}
            else:
                new = value  # type: ignore[assignment]
            set_path(state[number], path, new)
            change = Change("update", delta=Delta(((path, value_of(new)),)), **common)
        else:
            if not has_path(state[number], path):
                return
            unset_path(state[number], path)
            change = Change("update", delta=Delta(unsets=(path,)), **common)
        self.states.append(state)
        self.changes.append(change)


WRITES = st.tuples(
    st.integers(0, 2),
    st.sampled_from(["put", "set", "set", "set", "unset", "delete"]),
    st.sampled_from(["b", "a", "o", "o.y", "o.x"]),
    st.integers(0, 9),
)
STEPS = st.lists(st.one_of(WRITES, st.sampled_from(["read", "write", "apply"])), max_size=60)


def written(piece: Piece, read: World, target: World, source: World) -> None:
    """Copy a piece: insert missing documents, and read touched ones again."""
    again = {bson.decode(rawbson.wrap_value(*key, name=b"_id"))["_id"] for key in piece.touched}
    for number, document in read.items():
        if number in again or number in target:
            again.add(number)
        else:
            target[number] = bson.decode(bson.encode(document))
    reconcile(again, target, source)


@given(STEPS, STEPS, st.data())
def test_any_interleaving_of_copy_and_changes_gives_the_source(
    before: list[Any], during: list[Any], data: st.DataObject
) -> None:
    source, target, pieces = Source(), World(), OpenPieces()
    for step in before:
        if isinstance(step, tuple):
            source.write(*step)
    received = len(source.changes)
    reads: list[tuple[Piece, World]] = []

    def apply_some(count: int) -> None:
        nonlocal received
        batch = source.changes[received : received + count]
        received += len(batch)
        pieces.touch(NS, (change.id for change in batch))
        apply(folded(batch), target, source.now)

    for step in [*during, "read", "write"]:
        if isinstance(step, tuple):
            source.write(*step)
        elif step == "apply":
            apply_some(data.draw(st.integers(1, 4)))
        elif step == "read":
            reads.append((pieces.open(NS), source.now))
        else:
            for piece, read in reads:
                written(piece, read, target, source.now)
                pieces.close(piece)
            reads.clear()
    apply_some(len(source.changes))
    assert {number: bson.encode(document) for number, document in target.items()} == {
        number: bson.encode(document) for number, document in source.now.items()
    }


@given(st.lists(WRITES, min_size=1, max_size=many(60, 30)), st.data())
def test_folded_batches_pass_through_states_of_the_source(writes: list[Any], data: st.DataObject) -> None:
    source, target = Source(), World()
    for write in writes:
        source.write(*write)
    position = 0
    while position < len(source.changes):
        count = data.draw(st.integers(1, 10))
        apply(folded(source.changes[position : position + count]), target, {})
        position = min(position + count, len(source.changes))
        assert {key: bson.encode(each) for key, each in target.items()} == {
            key: bson.encode(each) for key, each in source.states[position].items()
        }


ITEMS = st.lists(st.tuples(st.sampled_from(["event", "event", "event", "ddl", "mark"]), st.booleans()), max_size=40)


@given(items=ITEMS, limit=st.integers(1, 5), closes_at_once=st.booleans())
def test_batches_have_everything_once_and_transactions_whole(
    *, items: list[tuple[str, bool]], limit: int, closes_at_once: bool
) -> None:
    buffer: list[Change | Mark] = []
    time = 1
    for kind, is_new_time in items:
        time += is_new_time
        stamp = Timestamp(time, 5)
        if kind == "mark":
            buffer.append(Mark(stamp, b""))
        else:
            buffer.append(Change("insert" if kind == "event" else "drop", stamp, b"", NS, key_of(1), b"", size=1))
    everything = list(buffer)
    batches: list[Batch] = []
    while (batch := cut(buffer, Limits(limit, 10**6), closes_at_once=closes_at_once)) is not None:
        batches.append(batch)
        del buffer[: batch.items]
    changes = [change for batch in batches for change in batch.changes]
    assert changes == [each for each in everything if isinstance(each, Change)][: len(changes)]
    for batch, following in pairwise(batches):
        if batch.is_whole and batch.changes:
            assert all(change.time > batch.changes[-1].time for change in following.changes) or closes_at_once
    for batch in batches:
        assert len(batch.changes) == 1 or all(change.is_of_document for change in batch.changes)
        assert len({change.time for change in batch.changes}) <= max(limit, 1)


def test_a_transaction_that_is_too_large_is_applied_in_parts() -> None:
    buffer = [Change("insert", Timestamp(1, 1), b"", NS, key_of(each), b"", size=10) for each in range(5)]
    assert cut(buffer, Limits(2, 20, 1000), closes_at_once=True) is None
    found = cut(buffer, Limits(2, 20, 40), closes_at_once=True)
    assert found is not None
    assert not found.is_whole


def test_an_event_of_a_mongod() -> None:
    token = {"_data": "826B0B5D9A000000012B022C01002B4A"}
    event = {
        "_id": token,
        "operationType": "update",
        "clusterTime": Timestamp(5, 1),
        "ns": {"db": "db", "coll": "a.b"},
        "documentKey": {"k": 1, "_id": 2},
        "updateDescription": {
            "updatedFields": {"f2": 1, "f10": 2, "a": 3, "o.x": 4},
            "removedFields": ["r"],
            "truncatedArrays": [{"field": "t", "newSize": 3}],
        },
    }
    found = parse(bson.encode(event))
    assert (found.namespace, found.kind, found.time) == ("db.a.b", "update", Timestamp(5, 1))
    assert found.id == id_of(key_of(2))
    assert token_time(found.token) == Timestamp(0x6B0B5D9A, 1)
    assert found.delta is not None
    assert [{name: dict(each) for name, each in update.items()} for update in updates(found.delta)] == [
        {"$push": {"t": {"$each": [], "$slice": 3}}},
        {"$unset": {"r": ""}, "$set": {"f2": 1}},
        {"$set": {"f10": 2}},
        {"$set": {"a": 3, "o.x": 4}},
    ]
    assert parents(found.delta) == ["o"]
