"""The arithmetic of count."""

from typing import Any

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.reads.aggregations import CountArguments
from shardwright.wire.errors import CommandError
from tests.router.reads.requests import request


@given(
    counts=st.lists(st.integers(0, 50), max_size=5),
    skip=st.integers(0, 60),
    limit=st.integers(-60, 60),
)
def test_the_total_is_that_of_one_server_with_all_documents(counts: list[int], skip: int, limit: int) -> None:
    found = request({"count": "c", "skip": skip, "limit": limit})
    arguments = CountArguments.parse(found)
    sent = bson.decode(arguments.body_for_shards(found.body))
    assert "skip" not in sent or sent["skip"] == 0
    of_shards = [min(each, sent["limit"]) if sent.get("limit") else each for each in counts]
    available = max(sum(counts) - skip, 0)
    assert arguments.total(of_shards) == (min(available, abs(limit)) if limit else available)


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ({"skip": -5}, 51024, "BSON field 'skip' value must be >= 0, actual value '-5'"),
        (
            {"skip": "x"},
            14,
            "BSON field 'count.skip' is the wrong type 'string', expected types '[long, int, decimal, double']",
        ),
        ({"limit": "x"}, 2, "limit value is not a valid number"),
        ({"limit": None}, 2, "limit value is not a valid number"),
        ({"limit": True}, 2, "limit value is not a valid number"),
        ({"limit": 3.5}, 9, "Expected an integer: limit: 3.5"),
        ({"limit": float("nan")}, 9, "Expected an integer, but found NaN in: limit: nan.0"),
        ({"limit": 1e300}, 9, "Cannot represent as a 64-bit integer: limit: 1e+300.0"),
        ({"limit": bson.Decimal128("3.5")}, 9, "Cannot represent as a 64-bit integer: limit: 3.5"),
        ({"limit": bson.Int64(-(1 << 63))}, 2, "limit value for count cannot be min long"),
        ({"query": 3}, 14, "BSON field 'count.query' is the wrong type 'int', expected type 'object'"),
        (
            {"limit": bson.Int64((1 << 63) - 1), "skip": 1},
            15,
            "Overflow on the count command: The sum of the limit and skip fields must fit into a long integer. "
            "Limit: 9223372036854775807   Skip: 1",
        ),
    ],
)
def test_a_wrong_argument_is_refused_in_mongodbs_words(arguments: dict[str, Any], code: int, message: str) -> None:
    with pytest.raises(CommandError) as refused:
        CountArguments.parse(request({"count": "c", **arguments}))
    assert (refused.value.code, refused.value.message) == (code, message)


def test_a_count_of_everything_is_passed_on_as_it_came() -> None:
    found = request({"count": "c", "query": None, "hint": "_id_"})
    assert CountArguments.parse(found).body_for_shards(found.body) is found.body
