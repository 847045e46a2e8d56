"""The order in which results are merged."""

from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.reads.sort_order import NEAREST_FIRST, SortOrder, sort_key_span, without_sort_key
from shardwright.wire.errors import RemoteProtocolError


def order(sort: dict[str, Any]) -> SortOrder | None:
    return SortOrder.parse(bson.encode(sort))


def key(of: SortOrder, *components: object) -> bytes:
    document = bson.encode({"_id": 1, "$sortKey": list(components)})
    return of.key(document, sort_key_span(document))


@pytest.mark.parametrize(
    ("sort", "descending"),
    [
        ({"a": 1}, (False,)),
        ({"a": -1, "b": 1}, (True, False)),
        ({"a": -1.0, "b": bson.Int64(1)}, (True, False)),
        ({"a": bson.Decimal128("-1"), "b": bson.Decimal128("1")}, (True, False)),
        ({"score": {"$meta": "textScore"}}, (True,)),
        ({"a": bson.Decimal128("NaN")}, (False,)),  # a mongod refuses it
    ],
)
def test_a_sort_has_a_direction_for_each_component(sort: dict[str, Any], descending: tuple[bool, ...]) -> None:
    assert order(sort) == SortOrder(descending)


@pytest.mark.parametrize("sort", [{}, {"$natural": 1}, {"$natural": -1}, {"a": 1, "$natural": 1}])
def test_no_sort_and_a_natural_one_give_no_order(sort: dict[str, Any]) -> None:
    assert order(sort) is None


def test_a_string_and_its_continuation_after_a_nul_keep_their_order_in_both_directions() -> None:
    shorter, longer = "a", "a\0"
    assert key(SortOrder((False,)), shorter) < key(SortOrder((False,)), longer)
    assert key(SortOrder((True,)), shorter) > key(SortOrder((True,)), longer)
    mixed = SortOrder((True, False))
    assert key(mixed, shorter, 5) > key(mixed, longer, 1)


values = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(1 << 63), (1 << 63) - 1),
    st.floats(allow_nan=False),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.binary(max_size=4),
)


@given(
    left=st.tuples(values, values), right=st.tuples(values, values), directions=st.tuples(st.booleans(), st.booleans())
)
def test_keys_compare_component_by_component(
    left: tuple[Any, Any], right: tuple[Any, Any], directions: tuple[bool, bool]
) -> None:
    ascending = SortOrder((False,))
    expected = 0
    for a, b, descends in zip(left, right, directions, strict=True):
        a_key, b_key = key(ascending, a), key(ascending, b)
        if a_key != b_key:
            expected = (-1 if a_key < b_key else 1) * (-1 if descends else 1)
            break
    left_key, right_key = key(SortOrder(directions), *left), key(SortOrder(directions), *right)
    assert (left_key > right_key) - (left_key < right_key) == expected


def test_the_distance_of_a_near_query_is_the_whole_key() -> None:
    near, far = bson.encode({"$sortKey": 1.5}), bson.encode({"$sortKey": 20})
    assert NEAREST_FIRST.key(near, sort_key_span(near)) < NEAREST_FIRST.key(far, sort_key_span(far))


@pytest.mark.parametrize("position", ["first", "between", "last"])
def test_the_sort_key_is_cut_out_wherever_it_stands(position: str) -> None:
    fields = {"a": 1, "b": {"$sortKey": [9], "x": "$sortKey\0"}, "c": b"\x04$sortKey\0\x09"}
    items = list(fields.items())
    items.insert({"first": 0, "between": 1, "last": 3}[position], ("$sortKey", [3, "x"]))
    document = bson.encode(dict(items))
    span = sort_key_span(document)
    assert bson.decode(without_sort_key(document, span)) == fields
    assert SortOrder((False, False)).key(document, span) == key(SortOrder((False, False)), 3, "x")


@pytest.mark.parametrize("document", [{}, {"a": 1}, {"a": {"$sortKey": [1]}, "b": {"$sortKey": [1]}}])
def test_a_document_without_the_sort_key_breaks_the_protocol(document: dict[str, Any]) -> None:
    with pytest.raises(RemoteProtocolError, match="without the \\$sortKey"):
        sort_key_span(bson.encode(document))


@pytest.mark.parametrize("sort_key", [[1], [1, 2, 3], 4])
def test_a_sort_key_of_another_shape_breaks_the_protocol(sort_key: object) -> None:
    document = bson.encode({"$sortKey": sort_key})
    with pytest.raises(RemoteProtocolError):
        SortOrder((False, False)).key(document, sort_key_span(document))


def test_text_score_in_front_of_the_sort_key_is_removed_too() -> None:
    document = bson.encode({"a": 1, "$textScore": 1.5, "$sortKey": [1]})
    assert bson.decode(without_sort_key(document, sort_key_span(document))) == {"a": 1}
