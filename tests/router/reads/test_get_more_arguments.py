"""The arguments of getMore."""

from typing import Any

import bson
import pytest

from shardwright.router.reads.find_arguments import GetMoreArguments
from shardwright.wire.errors import CommandError
from tests.router.reads.requests import request

GOOD = {"getMore": bson.Int64(5), "collection": "c"}


def test_what_is_asked_for() -> None:
    parsed = GetMoreArguments.parse(request({**GOOD, "batchSize": 3.5, "maxTimeMS": 100, "lsid": {}, "comment": 1}))
    assert parsed == GetMoreArguments(5, "test.c", 3, 100)


@pytest.mark.parametrize("arguments", [{}, {"batchSize": 0}, {"batchSize": None}])
def test_no_batch_size_means_as_much_as_fits(arguments: dict[str, Any]) -> None:
    assert GetMoreArguments.parse(request({**GOOD, **arguments})).batch_size is None


@pytest.mark.parametrize(
    ("command", "code", "message"),
    [
        ({**GOOD, "getMore": 5}, 14, "BSON field 'getMore.getMore' is the wrong type 'int', expected type 'long'"),
        ({**GOOD, "getMore": "x"}, 14, "BSON field 'getMore.getMore' is the wrong type 'string', expected type 'long'"),
        ({"getMore": bson.Int64(5)}, 40414, "BSON field 'getMore.collection' is missing but a required field"),
        (
            {**GOOD, "collection": 3},
            14,
            "BSON field 'getMore.collection' is the wrong type 'int', expected type 'string'",
        ),
        ({**GOOD, "collection": ""}, 73, "Collection names cannot be empty"),
        ({**GOOD, "collection": "a\0b"}, 73, "Collection names cannot have embedded null characters"),
        ({**GOOD, "collection": ".c"}, 73, "Collection names cannot start with '.': .c"),
        ({**GOOD, "batchSize": -1}, 51024, "BSON field 'batchSize' value must be >= 0, actual value '-1'"),
        ({**GOOD, "foo": 1}, 40415, "BSON field 'getMore.foo' is an unknown field."),
        ({**GOOD, "maxTimeMS": -1}, 2, "-1 value for maxTimeMS is out of range"),
    ],
)
def test_a_wrong_argument_is_refused_in_mongods_words(command: dict[str, Any], code: int, message: str) -> None:
    with pytest.raises(CommandError) as refused:
        GetMoreArguments.parse(request(command))
    assert (refused.value.code, refused.value.message) == (code, message)
