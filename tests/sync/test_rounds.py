"""Rounds of verification as values, and what differs in the shape of collections."""

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sync.changes import id_of
from shardwright.sync.plan import Collection, shape_problems
from shardwright.sync.ranges import Differences
from shardwright.sync.rounds import KEPT_MAX, TOUCHED_MAX, Compared, Round, Touched

NS = "shop.orders"


def key(number: int) -> tuple[int, bytes]:
    return id_of(bson.encode({"_id": number}))


STEPS = st.lists(st.tuples(st.booleans(), st.integers(0, 3)), max_size=40)


@given(st.sets(st.sampled_from("abcdef")), st.sets(st.sampled_from("abcdef")), STEPS)
def test_a_round_passes_every_collection_once_whatever_comes_goes_or_interrupts(
    first: set[str], second: set[str], steps: list[tuple[bool, int]]
) -> None:
    """Each step: whether the process is replaced by another one, and how many pieces the collection has."""
    now, passed, names = Round(), [], sorted(first)
    for number, (is_replaced, pieces) in enumerate(steps):
        if number == len(steps) // 2:
            names = sorted(second)
        found = now.next(names)
        if found is None:
            break
        for piece in range(pieces):
            now.position = bson.encode({"_id": piece})
            if is_replaced:
                now = Round.restored(bson.decode(bson.encode(now.stored())))
                assert now.next(names) == found
                assert now.position == bson.encode({"_id": piece})
        now.passed()
        passed.append(found)
    assert len(passed) == len(set(passed))
    if now.next(names) is None:
        assert set(names) <= set(passed)


def test_a_document_that_was_compared_again_replaces_what_was_known() -> None:
    found = Compared()
    found.note([key(1), key(2)], Differences(missing=(key(1),), different=(key(2),)))
    found.note([key(1)], Differences(extra=(key(1),)))
    assert (found.missing, found.extra, found.different) == (set(), {key(1)}, {key(2)})
    found.note([key(1), key(2)], Differences())
    assert found.is_equal


def test_too_many_differences_are_not_forgotten() -> None:
    found = Compared()
    found.note([], Differences(missing=tuple(key(each) for each in range(KEPT_MAX + 1))))
    assert len(found.ids) == KEPT_MAX
    found.note(found.ids, Differences())
    assert not found.is_equal


def test_too_many_written_documents_lead_to_another_round() -> None:
    touched = Touched()
    touched.note(NS, [key(1), key(1)])
    assert touched.take() == {NS: {key(1)}}
    assert touched.take() == {}
    assert not touched.is_full
    touched.note(NS, [key(each) for each in range(TOUCHED_MAX + 1)])
    assert touched.is_full


A, B = {"name": "a_1", "key": {"a": 1}}, {"name": "a_1", "key": {"a": -1}}
ZONE = {"min": {"a": 1}, "max": {"a": 2}, "tag": "z"}


@pytest.mark.parametrize(
    ("ours", "theirs", "found"),
    [
        (Collection(NS), None, "it is not at the target"),
        (None, Collection(NS), "it is only at the target"),
        (Collection(NS, "view"), Collection(NS), "it is a collection at the target, a view at the source"),
        (Collection(NS, options={"validator": {"a": 1}}), Collection(NS), "the option validator is different"),
        (Collection(NS, options={"collation": {"locale": "en"}}), Collection(NS), "the option collation"),
        (Collection(NS, indexes=[A]), Collection(NS), "the index a_1 is missing or different"),
        (Collection(NS, indexes=[A]), Collection(NS, indexes=[B]), "the index a_1 is missing or different"),
        (
            Collection(NS, indexes=[{"name": "i", "key": {"a": 1, "b": 1}}]),
            Collection(NS, indexes=[{"name": "i", "key": {"b": 1, "a": 1}}]),
            "the index i is missing or different",
        ),
        (Collection(NS), Collection(NS, indexes=[A]), "the index a_1 is only at the target"),
        (Collection(NS, key={"a": 1}), Collection(NS), "the shard key is none at the target instead of {'a': 1}"),
        (Collection(NS, key={"a": 1}, is_unique=True), Collection(NS, key={"a": 1}), "unique on one side"),
        (Collection(NS, key={"a": 1}, zones=[ZONE]), Collection(NS, key={"a": 1}), "the zones are different"),
    ],
)
def test_what_differs_is_said(ours: Collection | None, theirs: Collection | None, found: str) -> None:
    [problem] = shape_problems(ours, ours, theirs)
    assert found in problem


def test_what_means_the_same_does_not_differ() -> None:
    ours = Collection(NS, options={"validator": {}, "validationLevel": "strict", "uuid": 1}, key={"a": 1})
    theirs = Collection(NS, indexes=[A], key={"a": 1})
    assert shape_problems(ours, ours, theirs) == []
    assert shape_problems(None, None, None) == []
    assert shape_problems(Collection(NS), Collection(NS), Collection(NS, indexes=[A]), has_more=True) == []
