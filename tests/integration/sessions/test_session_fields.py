"""Wrong session fields of commands are refused as by a mongod, whichever server the command concerns."""

from typing import Any
from uuid import UUID

import pytest
from bson.binary import Binary
from bson.int64 import Int64

from tests.integration.raw_client import raw_client
from tests.local_cluster import RunningCluster

SESSION: dict[str, Any] = {"id": Binary.from_uuid(UUID(int=7))}
BYTES = b"a" * 16

SESSIONS: list[Any] = [
    5,
    {},
    {"id": 5},
    {"id": Binary(b"a", 4)},
    *({"id": Binary(BYTES, subtype)} for subtype in (0, 1, 3, 5, 6)),
    {**SESSION, "x": 1},
    {**SESSION, "uid": 5},
    {**SESSION, "uid": Binary(b"a")},
    {**SESSION, "txnNumber": Int64(1)},
    {**SESSION, "txnUUID": SESSION["id"]},
    {**SESSION, "txnUUID": 5},
]
FIELDS: list[dict[str, Any]] = [
    *({"lsid": lsid} for lsid in SESSIONS),
    {"txnNumber": Int64(1)},
    {"lsid": SESSION, "txnNumber": 1},
    {"lsid": SESSION, "txnNumber": "a"},
    {"lsid": SESSION, "txnNumber": Int64(-1)},
    {"lsid": SESSION, "startTransaction": True},
    {"lsid": SESSION, "startTransaction": 1},
    {"lsid": SESSION, "autocommit": False},
    {"lsid": SESSION, "autocommit": "a"},
    {"lsid": SESSION, "txnNumber": Int64(4), "autocommit": True},
    {"lsid": SESSION, "txnNumber": Int64(4), "autocommit": False, "startTransaction": False},
    {"lsid": SESSION, "txnNumber": Int64(4), "startTransaction": True},
    {"autocommit": False, "txnNumber": Int64(4)},
]
NOT_RETRYABLE: dict[str, Any] = {"lsid": SESSION, "txnNumber": Int64(3)}

ANY_DATABASE: list[dict[str, Any]] = [
    {"find": "c"},
    {"count": "c"},
    {"insert": "c", "documents": [{}]},
    {"getMore": Int64(5), "collection": "c"},
    {"killCursors": "c", "cursors": [Int64(5)]},
    {"endSessions": []},
    {"startSession": 1},
    {"ping": 1},
    {"hello": 1},
]


@pytest.mark.parametrize("command", ANY_DATABASE, ids=lambda command: next(iter(command)))
def test_wrong_session_fields(cluster: RunningCluster, command: dict[str, Any]) -> None:
    fields = FIELDS if "insert" in command else [*FIELDS, NOT_RETRYABLE]
    with raw_client(cluster.address("router.0")) as router, raw_client(cluster.address("shard0.0.mongod")) as mongod:
        for each in fields:
            ours, theirs = (client.command({**command, **each}, db="fields") for client in (router, mongod))
            assert theirs["ok"] == 0
            assert [ours.get(name) for name in ("code", "codeName", "errmsg")] == [
                theirs[name] for name in ("code", "codeName", "errmsg")
            ], each
