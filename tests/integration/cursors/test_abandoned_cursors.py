"""Clients that disconnect while a router opens cursors for them: no cursor is left behind on a shard."""

import time
from functools import partial

import pytest
from bson.int64 import Int64
from pymongo.database import Database

from tests.integration.raw_client import raw_client
from tests.integration.sharded import SPLIT_AT, Document, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

CLIENTS = 120
STEP_SECONDS = 0.000_1
"""Difference between the waits of two successive clients; most commands are answered within the longest wait."""

COMMENT = "abandoned"

COMMANDS: dict[str, Document] = {
    "find on several shards": {"find": "ranged", "filter": {}, "batchSize": 2},
    "find on one shard": {"find": "ranged", "filter": {"key": {"$lt": 400}}, "batchSize": 2},
    "long batch": {"find": "ranged", "filter": {"key": {"$lt": 400}}, "batchSize": 390},
    "merged by the router": {"aggregate": "ranged", "pipeline": [{"$sort": {"key": 1}}]},
    "merged by a shard": {"aggregate": "ranged", "pipeline": [{"$sort": {"key": 1}}, {"$skip": 1}, {"$unset": "a"}]},
    "join": {
        "aggregate": "ranged",
        "pipeline": [{"$lookup": {"from": "other", "as": "x", "let": {"k": "$key"}, "pipeline": [{"$limit": 300}]}}],
    },
}


@pytest.fixture(scope="module")
def filled(client: Client) -> Database[Document]:
    database = client["abandoned_cursors"]
    client.drop_database(database)
    shard_by_range(database).insert_many({"key": key, "text": "x" * 2000} for key in range(2 * SPLIT_AT))
    shard_by_range(database, "other").insert_many({"key": key} for key in range(2 * SPLIT_AT))
    return database


def shown_cursors(server: Client, database: Database[Document], **options: object) -> list[Document]:
    ours = {"type": "idleCursor", "ns": {"$regex": f"^{database.name}\\."}}
    return list(server.admin.aggregate([{"$currentOp": {"idleCursors": True, **options}}, {"$match": ours}]))


def kill_known(router: Client, database: Database[Document]) -> None:
    """Kill the cursors of clients that were answered before they left: the router knows these."""
    for each in shown_cursors(router, database, localOps=True):
        collection = each["ns"].partition(".")[2]
        database.command("killCursors", collection, cursors=[Int64(each["cursor"]["cursorId"])])


@pytest.mark.parametrize("kind", COMMANDS)
def test_no_cursor_is_left_on_a_shard(
    cluster: RunningCluster,
    client: Client,
    lower_mongod: Client,
    upper_mongod: Client,
    filled: Database[Document],
    kind: str,
) -> None:
    command = COMMANDS[kind]
    if "aggregate" in command:
        command = {**command, "cursor": {"batchSize": 2}}
    for number in range(CLIENTS):
        with raw_client(cluster.address("router.0")) as leaving:
            leaving.send_command(command, db=filled.name)
            time.sleep(number * STEP_SECONDS)  # the moments differ, not what has to hold

    def is_clean() -> bool:
        kill_known(client, filled)
        return not any(shown_cursors(mongod, filled) for mongod in (lower_mongod, upper_mongod))

    eventually(partial(is_clean), what="no cursor is left on a shard")
