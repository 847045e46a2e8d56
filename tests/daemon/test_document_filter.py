"""Filters on events mean what MongoDB's query language says."""

from datetime import UTC, datetime
from typing import Any

import pytest
from bson.regex import Regex

from shardwright.daemon.document_filter import parse_filter

EVENT: dict[str, Any] = {
    "atype": "createUser",
    "result": 13,
    "ts": datetime(2026, 5, 1, tzinfo=UTC),
    "users": [{"user": "ann", "db": "admin"}, {"user": "ben", "db": "shop"}],
    "roles": [],
    "param": {"db": "shop", "unique": True, "roles": ["read", {"role": "dbAdmin"}]},
}


@pytest.mark.parametrize(
    ("query", "is_meant"),
    [
        ({}, True),
        ({"atype": "createUser"}, True),
        ({"atype": "dropUser"}, False),
        ({"atype": {"$in": ["dropUser", "createUser"]}}, True),
        ({"atype": {"$in": [Regex("^create")]}}, True),
        ({"atype": {"$nin": ["dropUser", "createUser"]}}, False),
        ({"atype": {"$ne": "dropUser"}, "result": 13}, True),
        ({"result": {"$gt": 0, "$lte": 13}}, True),
        ({"result": {"$gt": 13}}, False),
        ({"result": {"$gt": "0"}}, False),
        ({"ts": {"$gte": datetime(2026, 1, 1, tzinfo=UTC)}}, True),
        ({"users.user": "ben"}, True),
        ({"users.user": {"$ne": "ben"}}, False),
        ({"users.db": {"$nin": ["config"]}}, True),
        ({"users": {"user": "ann", "db": "admin"}}, True),
        ({"roles": []}, True),
        ({"roles.role": {"$exists": False}}, True),
        ({"param.ns": {"$exists": True}}, False),
        ({"param.roles": "read"}, True),
        ({"param.roles.role": "dbAdmin"}, True),
        ({"param.unique": 1}, False),
        ({"param.unique": True}, True),
        ({"param.missing": None}, True),
        ({"param.db": {"$regex": "^SH", "$options": "i"}}, True),
        ({"param.db": Regex("^x")}, False),
        ({"param.db": {"$not": {"$regex": "^x"}}}, True),
        ({"$or": [{"atype": "dropUser"}, {"param.db": "shop"}]}, True),
        ({"$and": [{"atype": "createUser"}, {"param.db": "other"}]}, False),
        ({"$nor": [{"atype": "dropUser"}, {"param.db": "other"}]}, True),
    ],
    ids=str,
)
def test_what_a_filter_means(query: dict[str, Any], is_meant: bool) -> None:
    assert parse_filter(query)(EVENT) is is_meant


@pytest.mark.parametrize(
    "query",
    [
        {"$where": "true"},
        {"atype": {"$size": 1}},
        {"$or": []},
        {"$or": {"atype": 1}},
        {"$and": [5]},
        {"atype": {"$in": "createUser"}},
        {"atype": {"$regex": "("}},
        {"result": {"$gt": True}},
    ],
    ids=str,
)
def test_what_is_not_understood_is_refused(query: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"supported|needs an array|regular expression|compared"):
        parse_filter(query)
