"""The logs of all daemons without data of clients, at every level; and a router on which that changes while it runs."""

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final

import pytest
from pymongo.errors import OperationFailure

from tests.local_cluster import Client, RunningCluster, running_cluster

DAEMONS: Final = ("router.0", "shard0.0.shardd", "config.0.configd")
OPTIONS: Final = [
    word
    for role in ("router", "shardd", "configd")
    for option in ("log-level=debug", "slow-ms=0", "redact-client-log-data=true")
    for word in (f"--{role}-option", option)
]
DATA: Final = "4111-1111-1111"
"""Data in documents, filters and arguments."""


@pytest.fixture(scope="module")
def redacted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """A cluster that logs everything that happens, and no data."""
    with running_cluster(tmp_path_factory.mktemp("redacted"), "--shards", "1", *OPTIONS) as cluster:
        yield cluster


def work(client: Client) -> None:
    """Send data in every way; much of it fails."""
    shop, ns = client.shop, "shop.goods"
    commands: list[dict[str, Any]] = [
        {"insert": "goods", "documents": [{"_id": DATA, "k": DATA, DATA: 1}]},
        {"insert": "goods", "documents": [{"_id": DATA, "k": DATA}]},
        {"find": "goods", "filter": {"k": DATA}, "comment": DATA},
        {"find": "goods", "filter": {"$expr": {"$function": {"body": DATA}}}},
        {"update": "goods", "updates": [{"q": {"k": DATA}, "u": {"$set": {"other": DATA}}}]},
        {"findAndModify": "goods", "query": {"k": DATA}, "update": {"$inc": {"other": 1}}},
        {
            "aggregate": "goods",
            "pipeline": [{"$match": {"k": DATA}}, {"$set": {"x": {"$divide": [DATA, 0]}}}],
            "cursor": {},
        },
        {"createIndexes": "goods", "indexes": [{"key": {DATA: 1}, "name": DATA}]},
        {"delete": "goods", "deletes": [{"q": {"k": DATA}, "limit": 1, "hint": f"no {DATA}"}]},
        {"explain": {"find": "goods", "filter": {"k": DATA}}},
        {"count": "goods", "query": {"k": DATA}, "maxTimeMS": DATA},
        {"collMod": "goods", "validator": {"k": {"$ne": DATA}}},
        {"insert": "goods", "documents": [{"_id": 2, "k": DATA}]},
        {"createUser": "clerk", "pwd": DATA, "roles": [], "customData": {"card": DATA}},
    ]
    client.admin.command("shardCollection", ns, key={"k": 1})
    for command in commands:
        with suppress(OperationFailure):
            shop.command(command)
    client.admin.command("split", ns, middle={"k": DATA})
    with suppress(OperationFailure):
        client.admin.command("moveChunk", ns, find={"k": DATA}, to=DATA)
    with pytest.raises(OperationFailure):
        client.admin.command("split", ns, middle={"k": DATA})


def log_in_memory(client: Client) -> list[str]:
    """Return a router's ``getLog``; shard and config daemons show their mongods' logs, which have no redaction."""
    lines: list[str] = client.admin.command("getLog", "global")["log"]
    return lines


def test_no_log_has_data_of_clients(redacted: RunningCluster) -> None:
    before = {process: len(redacted.log(process).splitlines()) for process in DAEMONS}
    with redacted.direct("router.0") as client:
        work(client)
        assert client.shop.goods.count_documents({}) == 1
        assert [line for line in log_in_memory(client) if DATA in line] == []
    for process in DAEMONS:
        lines = redacted.log(process).splitlines()
        assert len(lines) > before[process], "nothing is logged"
        assert [line for line in lines if DATA in line] == []
    assert any('"shop.goods"' in line for line in redacted.log("router.0").splitlines())


def test_a_router_is_told_while_it_runs(redacted: RunningCluster) -> None:
    with redacted.direct("router.0") as client:
        set_parameter, get_parameter = {"setParameter": 1}, {"getParameter": 1, "redactClientLogData": 1}
        assert client.admin.command(get_parameter)["redactClientLogData"] is True
        assert client.admin.command({**set_parameter, "redactClientLogData": False})["was"] is True
        client.admin.command("logMessage", "text", extra={"k": "seen"})
        assert any("seen" in line for line in redacted.log("router.0").splitlines())
        assert client.admin.command({**set_parameter, "redactClientLogData": True})["was"] is False
        client.admin.command("logMessage", "text", extra={"k": "unseen"})
        lines = redacted.log("router.0").splitlines() + log_in_memory(client)
    assert [line for line in lines if "unseen" in line] == []
    assert any('"###"' in line for line in lines)
