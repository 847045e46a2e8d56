"""Copy and changes may overlap in any order: the result is the source.

A source is played in memory with its history of changes; copies read it at any time not before the changes that have
arrived, and write at any later time. What is folded is executed as a mongod would.
"""

from itertools import pairwise
from typing import Any, Final

import bson
from bson.timestamp import Timestamp
from hypothesis import example, given
from hypothesis import strategies as st

from shardwright.sync.batches import (
    BUSY_SECONDS,
    Batch,
    Folded,
    Limits,
    Moments,
    Patch,
    Put,
    Remove,
    Reread,
    cut,
    folded,
    parents,
    updates,
)
from shardwright.sync.changes import Change, Delta, Mark, id_of, parse, token_time
from shardwright.sync.checkpoint import NO_TIME
from shardwright.sync.ranges import OpenPieces, Piece
from shardwright.wire import rawbson
from tests.sampling import many
from tests.sync.running import Ends
from tests.sync.writers import DATABASE

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


@given(items=ITEMS, limit=st.integers(1, 5))
@example(items=[("event", True), ("mark", False), ("mark", False)], limit=5)
def test_a_whole_batch_leaves_out_no_change_and_has_none_too_many(*, items: list[tuple[str, bool]], limit: int) -> None:
    """The source has several shards. Marks may be repeated between two events of one time, and after the last one."""
    buffer: list[Change | Mark] = []
    applied: list[Change] = []
    moments: list[tuple[Timestamp, int]] = []
    changes: list[Change] = []
    time, last = 1, NO_TIME
    for kind, is_new_time in items:
        time += is_new_time
        stamp = Timestamp(time, 5)
        if kind == "mark":
            buffer.append(Mark(stamp, b""))
        else:
            changes.append(Change("insert" if kind == "event" else "drop", stamp, b"", NS, key_of(1), b"", size=1))
            buffer.append(changes[-1])
        while batch := cut(buffer, Limits(limit, 10**6), closes_at_once=False, last_change=last):
            del buffer[: batch.items]
            applied += batch.changes
            last = applied[-1].time if applied else NO_TIME
            if batch.is_whole:
                moments.append((batch.time, len(applied)))
    for moment, count in moments:
        assert applied[:count] == [each for each in changes if each.time <= moment]


def part(transaction: int, seconds: int, number: int = 1) -> Change:
    """A part of a transaction."""
    name = transaction.to_bytes(1)
    return Change("insert", Timestamp(seconds, number), b"", NS, key_of(1), b"", size=1, transaction=name)


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 2)), max_size=60))
def test_a_certain_moment_is_between_no_two_parts_of_a_transaction(steps: list[tuple[int, int]]) -> None:
    """Steps are transactions with the time since the previous step; parts of one are within the assumed time."""
    moments, now, parts = Moments(2), 10, list[Change]()
    for transaction, seconds in steps:
        now += seconds
        times = [each.time for each in parts if each.transaction == transaction.to_bytes(1)]
        if times and now - times[0].time > 2:
            continue
        parts.append(part(transaction, now, len(parts) + 1))
        moments.applied(parts[-1:])
        moments.equalled(parts[-1].time, parts[-1].time)
        moments.reached(parts[-1].time)
        if moments.newest is not None:
            assert moments.newest[0] <= parts[-1].time
    moments.reached(Timestamp(now + 3, 1))
    if moments.newest is None:
        return
    for each in parts:
        times = [other.time for other in parts if other.transaction == each.transaction]
        assert not min(times) <= moments.newest[0] < max(times)
    assert not moments.is_open


def test_moments_of_a_source_without_shards_are_certain_at_once() -> None:
    moments = Moments(0)
    for number in range(1, 4):
        moments.applied([part(1, 10, number)])
        moments.equalled(Timestamp(10, number), Timestamp(20, number))
        moments.reached(Timestamp(10, number))
        assert moments.newest == (Timestamp(10, number), Timestamp(20, number))


def test_a_moment_stays_only_until_something_is_applied() -> None:
    """Half of the changes at one time were applied, which the time of the batch does not show."""
    moments = Moments()
    moments.equalled(Timestamp(10, 1), Timestamp(20, 1))
    moments.reached(Timestamp(10, 1))
    moments.note_idle(Timestamp(10, 1), Timestamp(20, 5))
    assert moments.newest == (Timestamp(10, 1), Timestamp(20, 5))
    moments.applied([part(1, 10, 2)])
    moments.note_idle(Timestamp(10, 1), Timestamp(20, 9))
    assert moments.newest == (Timestamp(10, 1), Timestamp(20, 5))


def test_a_source_that_is_always_between_two_parts_has_moments_after_some_time() -> None:
    moments = Moments(1)
    for seconds in range(10, 10 + 2 * BUSY_SECONDS):
        moments.applied([part(seconds, seconds), part(seconds - 1, seconds)])
        moments.equalled(Timestamp(seconds, 1), Timestamp(seconds, 1))
        moments.reached(Timestamp(seconds, 1))
        assert (moments.newest is None) is (seconds <= 10 + BUSY_SECONDS)


def test_a_transaction_that_is_too_large_is_applied_in_parts() -> None:
    buffer = [Change("insert", Timestamp(1, 1), b"", NS, key_of(each), b"", size=10) for each in range(5)]
    assert cut(buffer, Limits(2, 20, 1000), closes_at_once=True) is None
    found = cut(buffer, Limits(2, 20, 40), closes_at_once=True)
    assert found is not None
    assert not found.is_whole


FORMS: Final = [
    *[1, 1.0, bson.Int64(1), bson.Decimal128("1"), bson.Decimal128("1.0"), bson.Decimal128("100E-2")],
    *[0, -0.0, bson.Decimal128("-0"), bson.Decimal128("0E+6000")],
    *[0.5, bson.Decimal128("0.5"), bson.Decimal128("0.1"), 0.1, bson.Decimal128("0.10")],
    *[2**53 + 1, float(2**53), 2.0**63, bson.Decimal128("9223372036854775808"), bson.Int64(2**63 - 1)],
    *[float("inf"), bson.Decimal128("Infinity"), float("-inf"), 1e300, bson.Decimal128("1E+300")],
    *[float("nan"), bson.Decimal128("NaN"), bson.Decimal128("sNaN")],
    *[bson.Decimal128("1E+6144"), bson.Decimal128("1E-6176")],
    *["a", "b", {"a": 1}, {"a": 1.0}, {"a": 2}, {"b": [1, {"c": 0.0}]}, {"b": [1.0, {"c": 0}]}],
]


def test_values_have_the_same_form_if_a_unique_index_takes_them_for_equal(ends: Ends) -> None:
    """Comparison with the equality of a mongod."""
    forms = ends.source[DATABASE].forms
    for one in FORMS:
        forms.delete_many({})
        forms.insert_one({"_id": one})
        found = id_of(bson.encode({"_id": one}))
        for other in FORMS:
            is_equal = forms.count_documents({"_id": {"$eq": other}}) == 1
            assert (id_of(bson.encode({"_id": other})) == found) is is_equal, (one, other)


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
