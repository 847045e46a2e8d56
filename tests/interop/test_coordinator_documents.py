"""The documents of DDL coordinators, read from the oplog of the primary shard: fields and phases, genuine and ours.

``docs/ddl.md`` says what differs, and why.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Final

import pytest

from tests.genuine_cluster import SHARDS, GenuineCluster
from tests.integration.sharded import LOWER, UPPER, Document
from tests.local_cluster import Client, RunningCluster

DB: Final = "interop_coordinators"
DOCUMENTS: Final = "config.system.sharding_ddl_coordinators"

OF_ALL: Final = {"_id", "recoveredFromDisk", "forwardableOpMetadata", "phase"}
"""The fields that every document has, of both kinds of servers."""

RENAME: Final = ["blockCRUDAndRename", "renameMetadata", "unblockCRUD"]
"""The phases that all renames share."""


@dataclass(frozen=True)
class Changed:
    """The coordinator documents of a change.

    Attributes:
        operation_type: the coordinator's.
        arguments: the fields with the arguments of the request, which both kinds of servers persist.
        genuine: the phases of a genuine shard, each once; empty if it writes no document.
        own: the phases of our shards.
    """

    operation_type: str
    arguments: frozenset[str]
    genuine: Sequence[str]
    own: Sequence[str]


def _collection(client: Client, name: str) -> None:
    client.admin.command("shardCollection", f"{DB}.{name}", key={"a": 1})


def _shard_new(client: Client) -> None:
    _collection(client, "sharded")


def _modify(client: Client) -> None:
    client[DB].command("collMod", "c", validationLevel="moderate")


def _granularity(client: Client) -> None:
    client[DB].command("collMod", "series", timeseries={"granularity": "minutes"})


def _refine(client: Client) -> None:
    client.admin.command("refineCollectionShardKey", f"{DB}.c", key={"a": 1, "b": 1})


def _rename(client: Client) -> None:
    client.admin.command("renameCollection", f"{DB}.c", to=f"{DB}.d")


def _rename_over(client: Client) -> None:
    client.admin.command("renameCollection", f"{DB}.d", to=f"{DB}.target", dropTarget=True)


def _rename_unsharded(client: Client) -> None:
    client.admin.command("renameCollection", f"{DB}.unsharded", to=f"{DB}.other")


def _forbid(client: Client) -> None:
    client.admin.command("setAllowMigrations", f"{DB}.target", allowMigrations=False)


def _drop(client: Client) -> None:
    client[DB].drop_collection("target")


def _drop_unsharded(client: Client) -> None:
    client[DB].drop_collection("other")


def _reshard(client: Client) -> None:
    client.admin.command("reshardCollection", f"{DB}.sharded", key={"b": 1}, numInitialChunks=1)


def _drop_database(client: Client) -> None:
    client.drop_database(DB)


_COLL_MOD: Final = ("collMod_V2", frozenset({"collModRequest"}), ["BlockShards", "UpdateConfig", "UpdateShards"])
_TO: Final = ("renameCollection", frozenset({"to", "dropTarget", "stayTemp"}))
_GENUINE_RENAME: Final = ["checkPreconditions", "freezeMigrations", *RENAME, "setResponse"]
_OWN_RENAME: Final = ["freezeMigrations", "freezeTargetMigrations", *RENAME]
_DROP: Final = ("dropCollection", frozenset[str](), ["freezeCollection", "dropCollection"], ["dropCollection"])

CHANGES: Final[Mapping[Callable[[Client], None], Changed]] = {
    _shard_new: Changed("createCollection_V2", frozenset({"shardKey"}), ["commit"], ["commit"]),
    _modify: Changed(*_COLL_MOD, ["BlockShards", "UpdateShards"]),
    _granularity: Changed(*_COLL_MOD, ["BlockShards", "UpdateConfig", "UpdateShards"]),
    _refine: Changed(
        "refineCollectionShardKey",
        frozenset({"newShardKey"}),
        ["RefineCollectionShardKey"],
        ["RefineCollectionShardKey"],
    ),
    _rename: Changed(*_TO, _GENUINE_RENAME, _OWN_RENAME),
    _rename_over: Changed(*_TO, _GENUINE_RENAME, _OWN_RENAME),
    _rename_unsharded: Changed(*_TO, _GENUINE_RENAME, []),
    _forbid: Changed("setAllowMigrations", frozenset(), [], []),
    _drop: Changed(*_DROP),
    _drop_unsharded: Changed(*_DROP),
    _reshard: Changed("reshardCollection", frozenset({"key"}), ["reshard"], ["reshard"]),
    _drop_database: Changed("dropDatabase", frozenset(), ["drop"], ["drop"]),
}
"""In the order in which they are made."""


class Watched:
    """One of the two clusters, and the oplog of the mongod of the primary shard."""

    def __init__(self, router: Client, mongod: Client, shards: Sequence[str]) -> None:
        self.router, self._mongod = router, mongod
        router.admin.command("enableSharding", DB, primaryShard=shards[0])
        for name in ("c", "target"):
            _collection(router, name)
        router[DB].c.create_index([("a", 1), ("b", 1)])
        router[DB].unsharded.insert_one({})
        time_series = {"timeField": "t", "metaField": "m"}
        router.admin.command("shardCollection", f"{DB}.series", key={"m": 1}, timeseries=time_series)

    def written_by(self, change: Callable[[Client], None]) -> list[Document]:
        """The documents that a change writes, in that order."""
        oplog = self._mongod.local["oplog.rs"]
        (last,) = oplog.find().sort("$natural", -1).limit(1)
        change(self.router)
        entries = oplog.find({"ts": {"$gt": last["ts"]}, "ns": DOCUMENTS, "op": {"$in": ["i", "u"]}})
        documents = [self._full(each) for each in entries.sort("$natural", 1)]
        # The collection of sessions may be sharded at that very moment.
        return [each for each in documents if not each["_id"]["namespace"].startswith("config.")]

    @staticmethod
    def _full(entry: Mapping[str, Any]) -> Document:
        # Both kinds of servers replace documents as a whole, which is an update with all fields.
        assert "phase" in entry["o"], entry
        return {**entry["o"], **entry.get("o2", {})}


@pytest.fixture(scope="module")
def clusters(client: Client, genuine: GenuineCluster, cluster: RunningCluster) -> Iterator[tuple[Watched, Watched]]:
    """The genuine cluster and ours, each with the collections that are to be changed."""
    with ExitStack() as clients:
        genuine_shards = [clients.enter_context(genuine.direct(genuine.shards[shard])) for shard in SHARDS]
        for server in (*genuine_shards, clients.enter_context(genuine.direct(genuine.config))):
            server.admin.command("setParameter", 1, reshardingMinimumOperationDurationMillis=0)
        own = clients.enter_context(cluster.direct("router.0"))
        own_mongod = clients.enter_context(cluster.direct(f"{LOWER}.0.mongod"))
        yield Watched(client, genuine_shards[0], SHARDS), Watched(own, own_mongod, (LOWER, UPPER))
        for each in (client, own):
            each.drop_database(DB)


def test_fields_and_phases(clusters: tuple[Watched, Watched]) -> None:
    for change, expected in CHANGES.items():
        for watched, phases in zip(clusters, (expected.genuine, expected.own), strict=True):
            documents = watched.written_by(change)
            found = [each["phase"] for each in documents]
            assert list(dict.fromkeys(found)) == list(phases), change
            for document in documents:
                assert document["_id"]["operationType"] == expected.operation_type
                assert document["forwardableOpMetadata"]["mayBypassWriteBlocking"] is False
                assert document.keys() >= OF_ALL | expected.arguments, change
