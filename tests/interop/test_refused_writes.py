"""Routers' answers while the writes of users are blocked, in front of genuine servers and of ours."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from difflib import unified_diff
from typing import Final

import pytest
from pymongo.errors import OperationFailure

from tests.genuine_cluster import SHARDS
from tests.integration.sharded import LOWER, UPPER, Document
from tests.interop.deployment import Deployment
from tests.local_cluster import Client, RunningCluster

DB: Final = "interop_blocked"

REFUSED_MIN: Final = 15
"""So many of the commands are refused at least."""

BYPASS: Final = {"mayBypassWriteBlocking": True}

OF_DATABASE: Final[Sequence[Document]] = [
    {"insert": "sharded", "documents": [{"key": 7}, {"key": 700}]},
    {"insert": "sharded", "documents": [{"key": 7}, {"key": 700}], "ordered": False},
    {"insert": "plain", "documents": [{}]},
    {"insert": "new", "documents": [{}]},
    {"update": "sharded", "updates": [{"q": {"key": 1}, "u": {"$set": {"a": 1}}}]},
    {"update": "sharded", "updates": [{"q": {}, "u": {"$set": {"a": 1}}, "multi": True}]},
    {"update": "sharded", "updates": [{"q": {"key": 2}, "u": {"$set": {"a": 1}}}]},  # matches nothing
    {"update": "sharded", "updates": [{"q": {"key": 2}, "u": {"$set": {"a": 1}}, "upsert": True}]},
    {"delete": "sharded", "deletes": [{"q": {"key": 1}, "limit": 1}]},
    {"delete": "sharded", "deletes": [{"q": {"key": 2}, "limit": 1}]},
    {"delete": "plain", "deletes": [{"q": {}, "limit": 0}]},
    {"findAndModify": "sharded", "query": {"key": 1}, "update": {"$set": {"a": 2}}},
    {"findAndModify": "sharded", "query": {"key": 2}, "remove": True},
    {"createIndexes": "sharded", "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    {"createIndexes": "plain", "indexes": [{"key": {"a": 1}, "name": "a_1"}]},
    {"dropIndexes": "sharded", "index": "dropped_1"},
    {"create": "other"},
    {"create": "view", "viewOn": "sharded", "pipeline": []},
    {"collMod": "sharded", "validationLevel": "moderate"},
    {"collMod": "plain", "validationLevel": "moderate"},
    {"drop": "sharded"},
    {"drop": "plain"},
    {"drop": "nothing"},
    {"dropDatabase": 1},
    {"aggregate": "plain", "pipeline": [{"$merge": {"into": "sharded"}}], "cursor": {}},
    {"insert": "plain", "documents": [{}], **BYPASS},
    {"create": "bypassed", **BYPASS},
]
"""Commands on the database with the collections."""

OUT: Final[Document] = {"aggregate": "sharded", "pipeline": [{"$out": "copied"}], "cursor": {}}
"""Its text names the command with which a genuine shard creates the temporary collection."""

OF_ADMIN: Final[Sequence[Document]] = [
    {"renameCollection": f"{DB}.sharded", "to": f"{DB}.elsewhere"},
    {"renameCollection": f"{DB}.plain", "to": f"{DB}.elsewhere"},
    {"shardCollection": f"{DB}.another", "key": {"_id": 1}},
    {"refineCollectionShardKey": f"{DB}.sharded", "key": {"key": 1, "a": 1}},
    {"reshardCollection": f"{DB}.sharded", "key": {"a": 1}},
    {"enableSharding": f"{DB}_2"},
    {"split": f"{DB}.sharded", "middle": {"key": 5}},
    {"setAllowMigrations": f"{DB}.sharded", "allowMigrations": True},
    {"setUserWriteBlockMode": 1, "global": True},
    {"setUserWriteBlockMode": 1},
    {"setUserWriteBlockMode": 1, "global": 1},
]
"""Commands on the admin database."""


class Cluster:
    """A cluster with a sharded collection on both shards, and an unsharded one.

    Args:
        router: a client of its router.
        inside: its servers.
        shards: the ids of the primary shard of the database, and of the other one.
    """

    def __init__(self, router: Client, inside: Deployment, shards: Sequence[str]) -> None:
        self.router, self.inside = router, inside
        namespace = f"{DB}.sharded"
        router.admin.command("enableSharding", DB, primaryShard=shards[0])
        router.admin.command("shardCollection", namespace, key={"key": 1})
        router.admin.command("split", namespace, middle={"key": 500})
        router.admin.command("moveChunk", namespace, find={"key": 500}, to=shards[1])
        router[DB].sharded.insert_many([{"key": 1}, {"key": 501}])
        router[DB].sharded.create_index("dropped")
        router[DB].plain.insert_one({})

    @contextmanager
    def blocked(self) -> Iterator[None]:
        """Block the writes of users."""
        self._set_mode(block=True)
        try:
            yield
        finally:
            self._set_mode(block=False)

    def answers(self) -> list[str]:
        """Each command, and how it ended, as lines."""
        commands = [*((DB, each) for each in OF_DATABASE), *(("admin", each) for each in OF_ADMIN)]
        answers = [[command, self._answer(db, command)] for db, command in commands]
        return self.inside.normal([*answers, [OUT, self._answer(DB, OUT, "code", "codeName")]])

    def _set_mode(self, *, block: bool) -> None:
        self.router.admin.command({"setUserWriteBlockMode": 1, "global": block})

    def _answer(self, db: str, command: Document, *names: str) -> list[Document]:
        try:
            reply = dict(self.router[db].command(command))
        except OperationFailure as failure:
            reply = dict(failure.details or {})
        errors = reply.get("writeErrors", [reply])
        kept = names or ("index", "code", "codeName", "errmsg")
        return [{name: each[name] for name in kept if name in each} for each in errors]


@pytest.fixture
def clusters(
    client: Client, cluster: RunningCluster, both: tuple[Deployment, Deployment]
) -> Iterator[tuple[Cluster, Cluster]]:
    """The genuine cluster and ours."""
    with cluster.direct("router.0") as own:
        try:
            yield Cluster(client, both[0], SHARDS), Cluster(own, both[1], (LOWER, UPPER))
        finally:
            for router in (client, own):
                router.drop_database(DB)
                router.drop_database(f"{DB}_2")


def test_answers(clusters: tuple[Cluster, Cluster]) -> None:
    genuine, own = (_while_blocked(cluster) for cluster in clusters)
    difference = "\n".join(unified_diff(genuine, own, "genuine", "ours", "", "", 8, ""))
    assert not difference, difference
    assert sum("UserWritesBlocked" in line for line in own) >= REFUSED_MIN


def _while_blocked(cluster: Cluster) -> list[str]:
    with cluster.blocked():
        found = cluster.answers()
    cluster.router[DB].sharded.insert_one({"key": 3})
    return found
