"""Ids, filters, states, pauses and ranges."""

from itertools import pairwise
from random import Random

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pymongo.errors import OperationFailure

from shardwright.sync.changes import id_of
from shardwright.sync.ends import is_transient, pauses
from shardwright.sync.ranges import bounds_from, count_for, differences, digest, find_command, hashes, piece_limit
from shardwright.sync.replication import Filter, Replication, State, StateError, Step, state_after


def test_an_id_does_not_depend_on_credentials_or_the_order_of_hosts() -> None:
    one = Replication("mongodb://user:secret@b:1,a:2/?replicaSet=rs", "mongodb://C:3/")
    other = Replication("mongodb://a:2,b:1/admin", "mongodb://c:3")
    assert one.id == other.id
    assert one.id != Replication(one.target, one.source).id
    assert one.id != Replication(one.source, one.target, Filter(exclude=frozenset({"db"}))).id


@pytest.mark.parametrize(
    ("include", "exclude", "namespace", "is_in"),
    [
        ((), (), "db.a", True),
        ((), (), "config.a", False),
        ((), (), "shardwright.sync", False),
        ((), (), "db.system.views", False),
        (("db",), (), "db.a.b", True),
        (("db.a",), (), "db.b", False),
        (("db.a",), (), "db.a", True),
        (("db",), ("db.a",), "db.a", False),
        ((), ("db",), "db.a", False),
    ],
)
def test_a_filter(include: tuple[str, ...], exclude: tuple[str, ...], namespace: str, *, is_in: bool) -> None:
    assert Filter(frozenset(include), frozenset(exclude)).has(namespace) is is_in


def test_states_change_as_in_mongosync() -> None:
    state = State.IDLE
    for step in (Step.START, Step.PAUSE, Step.RESUME, Step.COMMIT, Step.COMMITTED):
        state = state_after(state, step)
    assert state == State.COMMITTED
    for step in (Step.REVERSE, Step.REVERSED):
        state = state_after(state, step)
    assert state == State.RUNNING
    with pytest.raises(StateError, match="cannot pause a replication that is IDLE"):
        state_after(State.IDLE, Step.PAUSE)


@pytest.mark.parametrize("code", [24, 46, 107, 117, 12587])
def test_requests_repeat_while_another_operation_holds_a_lock(code: int) -> None:
    assert is_transient(OperationFailure("locked", code))
    assert not is_transient(OperationFailure("refused", 11000))


def test_ten_attempts_with_doubling_pauses() -> None:
    assert list(pauses()) == [1, 2, 4, 8, 16, 32, 64, 64, 64]


def encoded(value: object) -> bytes:
    return bson.encode({"_id": value})


@given(st.lists(st.integers(-(2**40), 2**40), max_size=60).map(sorted), st.integers(1, 20))
def test_ranges_cover_everything_once(values: list[int], count: int) -> None:
    bounds = bounds_from([encoded(each) for each in values], count)
    assert bounds[0][0] is None
    assert bounds[-1][1] is None
    assert all(high == low for (_, high), (low, _) in pairwise(bounds))
    assert len({id_of(low) for low, _ in bounds if low is not None}) == len(bounds) - 1
    assert len(bounds) <= count


def test_the_number_of_ranges_is_bounded() -> None:
    assert [count_for(size) for size in (0, 10**6, 10**8, 10**15)] == [1, 1, 3, 256]


@given(st.integers(0, 10**6), st.integers(0, 10**9))
def test_pieces_are_bounded(documents: int, size: int) -> None:
    found = piece_limit(documents, size, documents_max=1000, bytes_max=10**7)
    assert 1 <= found <= 1000
    if documents and size:
        assert found == 1 or found * size // documents <= 10**7


DOCUMENTS = st.dictionaries(st.integers(0, 8), st.integers(0, 3), max_size=8)


@given(DOCUMENTS, DOCUMENTS, st.randoms())
def test_digests_find_exactly_the_documents_that_differ(
    one: dict[int, int],
    other: dict[int, int],
    random: Random,
) -> None:
    def read(documents: dict[int, int]) -> list[bytes]:
        found = [bson.encode({"_id": key, "value": value}) for key, value in documents.items()]
        random.shuffle(found)
        return found

    source, target = hashes(read(one)), hashes(read(other))
    assert (digest(source) == digest(target)) is (one == other)
    found = differences(source, target)
    assert {id_of(encoded(key)) for key in one.keys() - other.keys()} == set(found.missing)
    assert {id_of(encoded(key)) for key in other.keys() - one.keys()} == set(found.extra)
    assert {id_of(encoded(key)) for key in one.keys() & other.keys() if one[key] != other[key]} == set(found.different)


def test_the_order_of_fields_and_types_of_numbers_count() -> None:
    documents: list[dict[str, float]] = [
        {"_id": 1, "a": 1, "b": 2},
        {"_id": 1, "b": 2, "a": 1},
        {"_id": 1, "a": 1.0, "b": 2},
    ]
    assert len({digest(hashes([bson.encode(each)])) for each in documents}) == 3


def test_a_piece_is_read_whatever_the_types_of_its_bounds() -> None:
    command = find_command("a", encoded(5), encoded("x"), 100, {"level": "majority"})
    assert bson.decode(bson.encode(command["filter"])) == {
        "$expr": {"$and": [{"$gt": ["$_id", {"$literal": 5}]}, {"$lte": ["$_id", {"$literal": "x"}]}]}
    }
    assert find_command("a", None, None, 100, {})["filter"] == {}


def test_a_reversed_replication_has_another_id_and_returns_to_the_first() -> None:
    one = Replication("mongodb://a", "mongodb://b", shard={"db.a": {"k": 1}})
    other = one.swapped()
    assert (other.source, other.target) == (one.target, one.source)
    assert other.id != one.id
    assert other.swapped() == one
