"""A ``find`` in a database that does not exist is parsed all the same, with the errors of a mongod."""

from collections.abc import Iterator
from typing import Any, Final

import pytest

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
