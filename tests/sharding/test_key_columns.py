"""The keys of a column equal the keys of its values."""

from struct import Struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.key_order import encode_value
from shardwright.sharding.routing_table_build import KEY_COLUMNS
from shardwright.wire.rawbson import DOUBLE, INT32, INT64

EXTREMES = {
    INT32: (0, 1, -1, 2**31 - 1, -(2**31)),
    INT64: (0, 1, -1, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)),
    DOUBLE: (0.0, -0.0, 1.5, -1.5, 5e-324, 2.0**53, 2.0**54, 1e308, float("inf"), -float("inf"), float("nan")),
}


def keys_one_by_one(kind: int, raw: list[bytes]) -> list[bytes]:
    return [encode_value(each, (kind, 0, 0, len(each))) for each in raw]


@pytest.mark.parametrize("kind", KEY_COLUMNS)
@given(data=st.data())
def test_a_column_has_the_keys_of_its_values(kind: int, data: st.DataObject) -> None:
    column = KEY_COLUMNS[kind]
    layout = Struct(f"<{column.code}")
    assert layout.size == column.size
    raw = data.draw(st.lists(st.binary(min_size=column.size, max_size=column.size), max_size=8))
    assert column.encode([layout.unpack(each)[0] for each in raw]) == keys_one_by_one(kind, raw)


@pytest.mark.parametrize("kind", EXTREMES)
def test_zero_and_what_has_no_exact_double(kind: int) -> None:
    column = KEY_COLUMNS[kind]
    raw = [Struct(f"<{column.code}").pack(value) for value in EXTREMES[kind]]
    assert column.encode(EXTREMES[kind]) == keys_one_by_one(kind, raw)
