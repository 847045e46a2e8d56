"""Documents are formatted as in the messages of mongod 6.0.5."""

import datetime

import bson
import pytest
from bson.binary import Binary
from bson.code import Code
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.raw_bson import RawBSONDocument
from bson.regex import Regex
from bson.timestamp import Timestamp
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from shardwright.sharding.bson_text import document_text

VALUES = {
    "int": 5,
    "long": Int64(5),
    "whole double": 5.0,
    "double": 0.1,
    "large double": 1e20,
    "infinity": float("inf"),
    "nan": float("nan"),
    "decimal": Decimal128("1.50"),
    "string": 'a "quoted" text',
    "empty object": {},
    "object": {"a": 1, "b": {"c": None}},
    "empty array": [],
    "array": [1, [2]],
    "binary": Binary(b"\x01\xab", 0),
    "oid": ObjectId("0123456789abcdef01234567"),
    "true": True,
    "date": datetime.datetime(2020, 1, 1),
    "null": None,
    "regex": Regex("^a", "i"),
    "code": Code("f()"),
    "scoped code": Code("f()", {"x": 1}),
    "timestamp": Timestamp(5, 7),
    "min": MinKey(),
    "max": MaxKey(),
}


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES.keys())
def test_text_is_that_of_mongod(mongod: MongoClient[dict[str, object]], value: object) -> None:
    key = bson.encode({"x": value})
    with pytest.raises(OperationFailure) as caught:  # no index has a y, and mongod quotes the hint
        mongod["test"].command("createIndexes", "text", indexes=[{"key": {"a": 1}, "y": RawBSONDocument(key)}])
    message = str(caught.value.details and caught.value.details["errmsg"])
    assert document_text(key) in message
