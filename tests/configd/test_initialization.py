"""The catalog as created by the first primary."""

from collections.abc import Mapping
from typing import Any

import pytest
import trio
from bson.objectid import ObjectId

from shardwright.configd.config_server import initialize_catalog
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser
from tests.configd.in_process import in_process
from tests.shardd.mini_cluster import Set

# As `listIndexes` shows them on a config server of MongoDB 6.0.5.
INDEXES = {
    "shards": {"host_1": True},
    "chunks": {"uuid_1_min_1": True, "uuid_1_shard_1_min_1": True, "uuid_1_lastmod_1": True},
    "tags": {"ns_1_min_1": True, "ns_1_tag_1": False},
    "migrations": {"ns_1_min_1": True},
    "locks": {"ts_1": False, "state_1_process_1": False},
    "lockpings": {"ping_1": False},
    "reshardingOperations": {"ReshardingCoordinatorActiveIndex": True},
    "collections": {},
    "databases": {},
    "settings": {},
    "keyStatistics": {"at_1": False},
    "keyStatisticsHistory": {"at_1": False},
}


@pytest.mark.parametrize("name", sorted(INDEXES))
def test_indexes(catalog: CatalogUser, name: str) -> None:
    indexes = {index["name"]: index.get("unique", False) for index in catalog.config[name].list_indexes()}
    assert indexes.pop("_id_") is False
    assert indexes == INDEXES[name]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("changelog", 200 << 20),
        ("actionlog", 20 << 20),
        ("keyStatistics", 64 << 20),
        ("keyStatisticsHistory", 128 << 20),
    ],
)
def test_logs_are_capped(catalog: CatalogUser, name: str, size: int) -> None:
    [collection] = catalog.config.list_collections(filter={"name": name})
    assert collection["options"] == {"capped": True, "size": size}


def test_version_names_the_cluster(catalog: CatalogUser) -> None:
    [version] = catalog.config.version.find()
    assert isinstance(version["clusterId"], ObjectId)
    assert version == {"_id": 1, "minCompatibleVersion": 5, "currentVersion": 6, "clusterId": version["clusterId"]}


def test_initialization_is_repeatable(catalog: CatalogUser, config_set: Set) -> None:
    async def main() -> None:
        async with in_process(config_set) as server:
            before = server.term.catalog.cluster_id
            assert await initialize_catalog(server.mongod) == before

    trio.run(main)
    assert catalog.config.version.count_documents({}) == 1


def test_a_catalog_of_another_version_is_left_alone() -> None:
    class OtherVersion:
        """A mongod whose catalog was written by another version."""

        async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
            assert "find" in command
            document = {"_id": 1, "minCompatibleVersion": 9, "currentVersion": 9, "clusterId": ObjectId()}
            return {"cursor": {"id": 0, "firstBatch": [document]}}

    with pytest.raises(CommandError) as failure:
        trio.run(initialize_catalog, OtherVersion())
    assert failure.value.code == ErrorCode.IncompatibleShardingConfigVersion
