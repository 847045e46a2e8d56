"""Retryable writes whose statements are on several shards: sent again, each takes effect once, as the reply shows.

The expected replies come from a lone mongod that executes the same commands.
"""

from collections.abc import Iterator

import pytest
from bson.int64 import Int64

from tests.integration.retryable_writes import (
    RetryingSession,
    deletes,
    deletes_by_id,
    increments,
    increments_by_id,
    inserts,
    modify,
    retrying_session,
    upserts,
)
from tests.integration.sharded import Document, Documents
from tests.local_cluster import RunningCluster


@pytest.fixture
def session(cluster: RunningCluster, ranged: Documents) -> Iterator[RetryingSession]:
    """A session whose collection is empty on the routers and on a lone mongod."""
    with retrying_session(cluster, ranged.database.name) as session:
        yield session


UNORDERED = {"ordered": False}
INCREMENT = {"update": {"$inc": {"n": 1}}}
MANY = {"q": {"n": {"$gte": 0}}, "u": {"$inc": {"n": 1}}, "multi": True}

# What is sent, in turn; each case begins with documents 100, 101, 600 and 601.
SEQUENCES: dict[str, list[Document]] = {
    "insert": [inserts(1, 501, 2, 502)] * 3,
    "insert, unordered": [inserts(501, 1, 502, 2, **UNORDERED)] * 3,
    "insert with ids": [inserts(501, 1, 502, 2, stmtIds=[7, 3, 9, 1])] * 2,
    "insert with ids, unordered": [inserts(501, 1, 502, 2, stmtIds=[7, 3, 9, 1], **UNORDERED)] * 2,
    "insert with a first id": [inserts(1, 501, 2, stmtId=4), inserts(501, stmtIds=[5]), inserts(2, stmtId=6)],
    "insert, a part first": [inserts(1, 502, stmtIds=[0, 3]), inserts(1, 501, 2, 502, 3)],
    "insert, the rest first": [inserts(501, 2, stmtIds=[1, 2]), inserts(1, 501, 2, 502, **UNORDERED)],
    "insert with an error between": [inserts(1, 600, 502)] * 2,
    "insert with an error between, unordered": [inserts(1, 600, 502, **UNORDERED)] * 2,
    "insert without history": [inserts(1, 501, stmtIds=[-1, -1])],
    "update": [increments(100, 600, 101, 50)] * 3,
    "update, unordered": [increments(600, 100, 50, 601, **UNORDERED)] * 3,
    "update of one document twice": [increments(100, 600, 100, 600)] * 2,
    "update, a part first": [increments(600, 101, stmtIds=[1, 2]), increments(100, 600, 101, 601)],
    "upsert": [upserts(1, 600, 501, 2)] * 3,
    "upsert, unordered": [upserts(1, 600, 501, 2, **UNORDERED)] * 3,
    "update by _id": [increments_by_id(100, 600)] * 3,
    "update by _id, unordered": [increments_by_id(100, 600, 50, **UNORDERED)] * 3,
    "update by _id of one": [increments_by_id(601)] * 2,
    "delete": [deletes(100, 600, 50)] * 3,
    "delete by _id": [deletes_by_id(600, 100)] * 3,
    "delete by _id, unordered": [deletes_by_id(600, 100, 50, **UNORDERED)] * 3,
    "findAndModify, before": [modify(600, **INCREMENT)] * 2,
    "findAndModify, after": [modify(600, **INCREMENT, new=True)] * 2,
    "findAndModify that removes": [modify(600, remove=True)] * 2,
    "findAndModify that inserts": [modify(501, **INCREMENT, upsert=True, new=True)] * 2,
    "findAndModify of nothing": [modify(501, **INCREMENT)] * 2,
    "findAndModify with an id": [modify(600, **INCREMENT, stmtId=5)] * 2,
    "multi": [{"update": "ranged", "updates": [MANY]}],
    "multi among others": [
        {"update": "ranged", "updates": [*increments(100)["updates"], MANY, *increments(600)["updates"]]}
    ]
    * 2,
    "multi among others, unordered": [
        {"update": "ranged", "updates": [*increments(100)["updates"], MANY, *increments(600)["updates"]], **UNORDERED}
    ]
    * 2,
    "delete of many": [{"delete": "ranged", "deletes": [{"q": {"n": {"$gte": 0}}, "limit": 0}]}],
}

WRONG_IDS: list[Document] = [
    {"stmtId": 1, "stmtIds": [1, 2]},
    {"stmtIds": [1]},
    {"stmtIds": []},
    {"stmtIds": 5},
    {"stmtIds": ["a", "b"]},
    {"stmtIds": [Int64(1), Int64(2)]},
    {"stmtIds": [1.0, 2.0]},
    {"stmtIds": [1.5, 2.0]},
    {"stmtIds": [None, 1]},
    {"stmtId": "a"},
    {"stmtId": 1.5},
    {"stmtId": 2.0},
    {"stmtId": Int64(2)},
    {"stmtId": Int64(1 << 40)},
    {"stmtId": None},
    {"stmtIds": None},
]


@pytest.mark.parametrize("case", SEQUENCES)
def test_replies_are_those_of_a_mongod(session: RetryingSession, ranged: Documents, case: str) -> None:
    """The second command goes through the other router."""
    stored = {"insert": "ranged", "documents": [{"_id": key, "key": key, "n": 0} for key in (100, 101, 600, 601)]}
    session.compare(stored, 1)
    for position, command in enumerate(SEQUENCES[case]):
        session.compare(command, 2, router=position % 2)
    assert list(ranged.find().sort("_id")) == session.documents_on_mongod()


@pytest.mark.parametrize("ids", WRONG_IDS, ids=str)
@pytest.mark.parametrize("keys", [(1, 2), (1, 501)], ids=["one shard", "two shards"])
def test_wrong_statement_ids(session: RetryingSession, ids: Document, keys: tuple[int, ...]) -> None:
    command = inserts(*keys, **ids)
    expected, found = session.on_mongod(command, 1), session.run(command, 1)
    assert {**found, "errmsg": None} == {**expected, "errmsg": None}
    # mongod's goes on with the whole command as it understands it.
    assert str(expected.get("errmsg")).startswith(str(found.get("errmsg")))


@pytest.mark.parametrize("keys", [(1, 2), (1, 501)], ids=["one shard", "two shards"])
def test_documents_with_the_same_statement_id_are_refused(
    session: RetryingSession, ranged: Documents, keys: tuple[int, ...]
) -> None:
    """A mongod that gets both ends itself."""
    assert session.run(inserts(*keys, stmtIds=[1, 1]), 1)["code"] == 72
    assert ranged.count_documents({}) == 0
