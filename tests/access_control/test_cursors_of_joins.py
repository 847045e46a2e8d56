"""Cursors of pipelines that the router joins, read by another connection of the user than the one that opened them."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any, Final

import pytest
from bson import Int64

from tests.access_control.users import raw_user
from tests.integration.raw_client import RawClient
from tests.local_cluster import RunningCluster

Command = dict[str, Any]

DB: Final = "joined"
COUNT: Final = 200

UNION: Final[Command] = {"$unionWith": "sharded"}
LOOKUP: Final[Command] = {"$lookup": {"from": "sharded", "localField": "k", "foreignField": "_id", "as": "j"}}
PIPELINES: Final[dict[str, tuple[list[Command], int]]] = {
    "union": ([UNION], 2 * COUNT),
    "lookup": ([LOOKUP], COUNT),
    "nested": ([{"$lookup": {"from": "sharded", "pipeline": [{"$limit": 1}, UNION], "as": "j"}}], COUNT),
    "graphLookup": (
        [
            {
                "$graphLookup": {
                    "from": "sharded",
                    "startWith": "$k",
                    "connectFromField": "none",
                    "connectToField": "k",
                    "as": "j",
                }
            }
        ],
        COUNT,
    ),
    "facet": ([{"$facet": {"a": [LOOKUP]}}, {"$unwind": "$a"}], COUNT),
    "many": ([UNION, LOOKUP, UNION, {"$sort": {"k": 1}}], 3 * COUNT),
}


@pytest.fixture(scope="module")
def collections(closed: RunningCluster) -> Iterator[None]:
    """A collection sharded over both shards, and one that is not."""
    with closed.client() as root:
        root.admin.command("enableSharding", DB, primaryShard="shard0")
        root.admin.command("shardCollection", f"{DB}.sharded", key={"k": "hashed"})
        for name in ("sharded", "plain"):
            root[DB][name].insert_many({"_id": number, "k": number} for number in range(COUNT))
        yield
        root.drop_database(DB)


def number_read(opening: RawClient, reading: RawClient, reply: Command, meanwhile: Command | None = None) -> int:
    """Count the documents of a cursor whose later batches another connection reads."""
    count, cursor = len(reply["cursor"]["firstBatch"]), reply["cursor"]
    while cursor["id"]:
        if meanwhile is not None:
            opening.command(meanwhile, db=DB)
        _, _, name = cursor["ns"].partition(".")
        reply = reading.command({"getMore": Int64(cursor["id"]), "collection": name, "batchSize": 50}, db=DB)
        assert reply["ok"], reply
        count, cursor = count + len(reply["cursor"]["nextBatch"]), reply["cursor"]
    return count


@pytest.mark.parametrize("meanwhile", [None, {"ping": 1}, {"logout": 1}], ids=["idle", "used", "logged out"])
@pytest.mark.parametrize("source", ["plain", "sharded"])
@pytest.mark.parametrize("name", PIPELINES)
def test_another_connection_reads_the_rest(
    closed: RunningCluster, collections: None, name: str, source: str, meanwhile: Command | None
) -> None:
    pipeline, expected = PIPELINES[name]
    with raw_user(closed, "chief") as opening, raw_user(closed, "chief") as reading:
        command = {"aggregate": source, "pipeline": pipeline, "cursor": {"batchSize": 2}}
        assert number_read(opening, reading, opening.command(command, db=DB), meanwhile) == expected


@pytest.mark.parametrize("name", PIPELINES)
def test_the_connection_that_opened_the_cursor_may_be_gone(
    closed: RunningCluster, collections: None, name: str
) -> None:
    pipeline, expected = PIPELINES[name]
    with ExitStack() as stack, raw_user(closed, "chief") as reading:
        opening = stack.enter_context(raw_user(closed, "chief"))
        command = {"aggregate": "plain", "pipeline": pipeline, "cursor": {"batchSize": 2}}
        reply = opening.command(command, db=DB)
        stack.close()
        assert number_read(opening, reading, reply) == expected
