"""The shared parsing of command arguments, compared with mongod 6.0.5's replies to the same fields."""

from typing import Any

import bson
import pytest
from bson import Decimal128
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.arguments import INT64_MAX, INT64_MIN, Arguments, Strictness, clamp_int64
from shardwright.wire.errors import CommandError


def arguments(**fields: Any) -> Arguments:  # noqa: ANN401 - any BSON
    return Arguments(bson.encode(fields), "getMore")


def refused(call: Any, *args: Any, **options: Any) -> tuple[int, str]:  # noqa: ANN401 - any method
    with pytest.raises(CommandError) as caught:
        call(*args, **options)
    return int(caught.value.code), caught.value.message


@pytest.mark.parametrize("fields", [{}, {"collection": None}])
def test_null_is_missing(fields: dict[str, Any]) -> None:
    """mongod gives the same reply to both."""
    given_fields = arguments(**fields)
    assert given_fields.maybe_string(b"collection") is None
    assert refused(given_fields.string, b"collection") == (
        40414,
        "BSON field 'getMore.collection' is missing but a required field",
    )


def test_wrong_types_are_named_as_mongod_names_them() -> None:
    assert refused(arguments(collection=1).string, b"collection") == (
        14,
        "BSON field 'getMore.collection' is the wrong type 'int', expected type 'string'",
    )
    assert refused(arguments(batchSize="x").maybe_integer, b"batchSize") == (
        14,
        "BSON field 'getMore.batchSize' is the wrong type 'string', expected types '[long, int, decimal, double']",
    )


def test_number_below_its_minimum() -> None:
    assert refused(arguments(batchSize=-1).maybe_integer, b"batchSize") == (
        51024,
        "BSON field 'batchSize' value must be >= 0, actual value '-1'",
    )
    assert arguments(batchSize=-1).maybe_integer(b"batchSize", minimum=None) == -1


@pytest.mark.parametrize("value", [0, 0.0, bson.Int64(0), bson.Decimal128("0"), False])
def test_safe_bool_takes_numbers(value: object) -> None:
    assert arguments(flag=value).boolean(b"flag", True) is False


def test_strictness_of_booleans() -> None:
    one = arguments(flag="x")
    assert "expected types '[bool, long, int, decimal, double']" in refused(one.boolean, b"flag")[1]
    assert "expected type 'bool'" in refused(one.boolean, b"flag", strictness=Strictness.BOOL)[1]
    assert (
        "should be a boolean value, but found: string"
        in (refused(one.boolean, b"flag", strictness=Strictness.OPTIONAL_BOOL)[1])
    )
    assert arguments(flag=None).boolean(b"flag", True, Strictness.BOOL) is True
    for value, kind in ((None, "null"), (1, "int")):
        flag = arguments(flag=value).boolean
        assert refused(flag, b"flag", strictness=Strictness.EXTRACTED)[1] == (
            f'"flag" had the wrong type. Expected bool, found {kind}'
        )
    assert "found: null" in refused(arguments(flag=None).boolean, b"flag", strictness=Strictness.OPTIONAL_BOOL)[1]


def test_documents_of_an_array_and_fields_of_a_document() -> None:
    given_fields = arguments(bounds=[{"a": 1}, {}], nested={"uuid": 1})
    assert given_fields.raw_documents(b"bounds") == [bson.encode({"a": 1}), bson.encode({})]
    assert "'getMore.bounds.1'" in refused(arguments(bounds=[{}, 1]).raw_documents, b"bounds")[1]
    assert "'getMore.nested.uuid'" in refused(given_fields.nested(b"nested").uuid, b"uuid")[1]


@pytest.mark.parametrize(("value", "whole"), [("3.5", 4), ("4.5", 4), ("-3.5", -4), ("1E+30", INT64_MAX), ("NaN", 0)])
def test_a_decimal_is_rounded(value: str, whole: int) -> None:
    assert clamp_int64(Decimal128(value)) == whole
    assert clamp_int64(3.5) == 3, "a double is truncated"


@given(st.integers() | st.floats())
def test_clamped_numbers_are_int64(value: float) -> None:
    clamped = clamp_int64(value)
    assert INT64_MIN <= clamped <= INT64_MAX
    if isinstance(value, int) and INT64_MIN <= value <= INT64_MAX:
        assert clamped == value
