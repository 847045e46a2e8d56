"""Reads of a missing database are still parsed, and get mongod's errors."""

from collections.abc import Iterator
from typing import Any, Final
from uuid import uuid4

import pytest
from bson.binary import Binary

from tests.local_cluster import Client, RunningCluster

DB: Final = "missing_database"

FINDS: Final[dict[str, dict[str, Any]]] = {
    "right": {"filter": {"a": 1}, "sort": {"a": 1}, "comment": "x", "readConcern": {"level": "majority"}},
    "tailable": {"tailable": True, "awaitData": True, "singleBatch": False},
    "unknown operator": {"filter": {"$unknown": 1}},
    "sort of a wrong type": {"sort": {"a": "x"}},
    "projection that is wrong": {"projection": {"a": {"$slice": "x"}}},
    "limit of a wrong type": {"limit": "x"},
    "unknown locale": {"collation": {"locale": "xx"}},
    "unknown field": {"bogus": 1},
    "negative batch size": {"batchSize": -1},
    "awaitData alone": {"awaitData": True},
    "let that is wrong": {"let": {"a": {"$unknown": 1}}},
}


AGGREGATIONS: Final[dict[str, dict[str, Any]]] = {
    "without cursor": {},
    "cursor of a wrong type": {"cursor": 5},
    "negative batch size": {"cursor": {"batchSize": -1}},
    "unknown field of the cursor": {"cursor": {"bogus": 1}},
}

ERROR: Final = ("ok", "code", "codeName", "errmsg")


@pytest.fixture(scope="module")
def mongod(cluster: RunningCluster) -> Iterator[Client]:
    """A client of a mongod without a router."""
    with cluster.direct("config.0.mongod") as connected:
        yield connected


def reply_to(client: Client, find: dict[str, Any]) -> dict[str, Any]:
    """The reply to a ``find``, without what differs from one time to the next."""
    reply = client[DB].command({"find": "c", **find}, check=False)
    return {name: reply.get(name) for name in ("ok", "code", "codeName", "errmsg", "cursor")}


@pytest.mark.parametrize("case", FINDS)
def test_same_as_mongod(client: Client, mongod: Client, case: str) -> None:
    assert reply_to(client, FINDS[case]) == reply_to(mongod, FINDS[case])


@pytest.mark.parametrize("case", AGGREGATIONS)
@pytest.mark.parametrize("target", ["c", 1])
def test_cursor_of_an_aggregation_is_checked(client: Client, mongod: Client, case: str, target: str | int) -> None:
    command = {"aggregate": target, "pipeline": [], **AGGREGATIONS[case]}
    router, server = (each[DB].command(command, check=False) for each in (client, mongod))
    assert server["ok"] == 0
    assert {name: router.get(name) for name in ERROR} == {name: server.get(name) for name in ERROR}


@pytest.mark.parametrize("command", [{"find": "c"}, {"aggregate": "c", "pipeline": [], "cursor": {}}], ids=str)
def test_no_collection_has_the_expected_uuid(client: Client, mongod: Client, command: dict[str, Any]) -> None:
    """With mongos's message."""
    asked = {**command, "collectionUUID": Binary.from_uuid(uuid4())}
    router, server = (each[DB].command(asked, check=False) for each in (client, mongod))
    names = ("ok", "code", "codeName", "db", "collectionUUID", "expectedCollection", "actualCollection")
    assert {name: router[name] for name in names} == {name: server[name] for name in names}
    assert router["errmsg"] == "Database does not exist"
