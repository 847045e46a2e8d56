"""The predicted shards are the contacted ones, for the operations of the compatibility tests."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

import pytest
from bson import Int64, MaxKey
from pymongo import AsyncMongoClient
from pymongo.errors import OperationFailure

from shardwright.console.placements import Tables, predicted
from shardwright.console.prediction import NotPredictable, Prediction, predict, request_of
from shardwright.console.reader import Reader
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.router.test_read_compatibility import CASES as READS
from tests.router.test_read_compatibility import documents
from tests.router.test_write_compatibility import CASES as WRITES
from tests.router.test_write_compatibility import STORED

DB: Final = "predictions"
APP: Final = "predictions"
READ_LAYOUTS: Final = ("ranged", "hashed", "compound", "unsharded", "seen")
WRITE_LAYOUTS: Final = ("written", "unsharded_written")
_OTHERS: Final = ("$lookup", "$unionWith", "$graphLookup", "$out", "$merge", "$facet")


class Run(NamedTuple):
    """A command that was run, and whether it succeeded as a whole."""

    command: dict[str, Any]
    succeeded: bool


@pytest.fixture(scope="module")
def layouts(cluster: RunningCluster) -> Iterator[Client]:
    """A client of the first router, which logs all operations, and the collections."""
    first, second = sorted(cluster.shards)
    with cluster.direct("router.0", retryWrites=False, appName=APP, maxPoolSize=1) as client:
        admin = client.admin
        client.drop_database(DB)
        admin.command("enableSharding", DB, primaryShard=first)
        for name, key, middles in (
            ("ranged", {"k": 1}, [{"k": 100}, {"k": 170}]),
            ("compound", {"g": 1, "k": 1}, [{"g": 3, "k": 100}, {"g": 5, "k": 0}]),
            ("written", {"k": 1}, [{"k": 0}]),
        ):
            admin.command("shardCollection", f"{DB}.{name}", key=key)
            for middle in middles:
                admin.command("split", f"{DB}.{name}", middle=middle)
        admin.command("moveRange", f"{DB}.ranged", min={"k": 100}, max={"k": 170}, toShard=second)
        admin.command("moveRange", f"{DB}.compound", min={"g": 3, "k": 100}, max={"g": 5, "k": 0}, toShard=second)
        admin.command("moveRange", f"{DB}.written", min={"k": 0}, max={"k": MaxKey()}, toShard=second)
        admin.command("shardCollection", f"{DB}.hashed", key={"k": "hashed"})
        for name in READ_LAYOUTS[:-1]:
            client[DB][name].create_index({"k": 1})
            client[DB][name].create_index({"p": "2d"})
            client[DB][name].insert_many(documents())
        client[DB].create_collection("seen", viewOn="ranged", pipeline=[{"$match": {"k": {"$gte": 20}}}])
        was = client[DB].command("profile", 0, slowms=-1)["slowms"]
        yield client
        client[DB].command("profile", 0, slowms=was)
        client.drop_database(DB)


def reads() -> Iterator[dict[str, Any]]:
    for layout in READ_LAYOUTS:
        for case in READS:
            yield {case.name: layout, **case.command}


def writes() -> Iterator[dict[str, Any] | None]:
    """The commands of each case; None before a case, when the documents are stored again."""
    transaction = 0
    for layout in WRITE_LAYOUTS:
        for commands in WRITES.values():
            yield None
            transaction += 1 << 8
            for command in commands:
                numbered = {**command, next(iter(command)): layout}
                if "txnNumber" in command:
                    numbered["txnNumber"] = Int64(transaction + command["txnNumber"])
                yield numbered


def run(client: Client, command: dict[str, Any]) -> Run:
    try:
        reply = client[DB].command(command)
    except OperationFailure:
        return Run(command, succeeded=False)
    return Run(command, succeeded=not reply.get("writeErrors"))


def contacted(cluster: RunningCluster, names: Sequence[str], done: Sequence[Run]) -> list[list[str]]:
    """The shards that each command was sent to, as the router has logged them."""

    def lines() -> list[dict[str, Any]]:
        found = [json.loads(line) for line in cluster.log("router.0").splitlines() if '"Slow operation"' in line]
        wanted = {f"{DB}.{name}" for name in names}
        return [line for line in found if line.get("app_name") == APP and line["namespace"] in wanted]

    expected = [next(iter(each.command)) for each in done]

    def last() -> list[dict[str, Any]]:
        return [line for line in lines() if line["command"] not in ("getMore",)][-len(expected) :]

    eventually(lambda: [line["command"] for line in last()] == expected, what="all operations are logged")
    # A shard that merges the results of others is listed twice.
    return [sorted(set(line["shards"])) for line in last()]


def predictions(
    cluster: RunningCluster, commands: Sequence[dict[str, Any]]
) -> list[tuple[Prediction, Prediction] | None]:
    """Predict each command by full tables and by pieces; None if it is not routed by a shard key."""

    async def all_of_them() -> list[tuple[Prediction, Prediction] | None]:
        async with AsyncMongoClient[dict[str, Any]](cluster.uri) as client:
            reader = Reader(client)
            tables = Tables(reader)
            found: list[tuple[Prediction, Prediction] | None] = []
            for command in commands:
                try:
                    request = request_of(command, DB)
                    by_table = predict(request, await tables.where(DB, str(next(iter(command.values())))))
                    found.append((by_table, (await predicted(reader, request)).prediction))
                except NotPredictable:
                    found.append(None)
            return found

    return asyncio.run(all_of_them())


def disagreements(
    done: Sequence[Run], foretold: Sequence[tuple[Prediction, Prediction] | None], were: Sequence[Sequence[str]]
) -> tuple[list[str], int]:
    """The operations whose predicted shards differ from the contacted ones, and how many were compared."""
    wrong, compared = [], 0
    for each, both, shards in zip(done, foretold, were, strict=True):
        if both is None:
            continue
        text = str(each.command)
        if both[0].shards != both[1].shards:
            wrong.append(f"{text[:200]}: {both[0].shards} by the table, {both[1].shards} by pieces")
        if both[0].refusal is not None and each.succeeded:
            wrong.append(f"{text[:200]}: succeeded, predicted {both[0].refusal}")
        if not each.succeeded:
            continue
        compared += 1
        is_joined = any(stage in text for stage in _OTHERS)
        is_right = set(both[0].shards) <= set(shards) if is_joined else list(both[0].shards) == list(shards)
        if not is_right:
            wrong.append(f"{text[:200]}: predicted {both[0].shards}, contacted {shards}")
    return wrong, compared


def test_of_reads(cluster: RunningCluster, layouts: Client) -> None:
    done = [run(layouts, command) for command in reads()]
    foretold = predictions(cluster, [each.command for each in done])
    wrong, compared = disagreements(done, foretold, contacted(cluster, READ_LAYOUTS, done))
    assert wrong == []
    assert compared > len(done) // 2


def test_of_writes(cluster: RunningCluster, layouts: Client) -> None:
    done = []
    for command in writes():
        if command is None:
            for name in WRITE_LAYOUTS:
                with cluster.client() as other:
                    other[DB][name].delete_many({})
                    other[DB][name].insert_many(STORED)
        else:
            done.append(run(layouts, command))
    foretold = predictions(cluster, [each.command for each in done])
    wrong, compared = disagreements(done, foretold, contacted(cluster, WRITE_LAYOUTS, done))
    assert wrong == []
    assert compared > len(done) // 2
