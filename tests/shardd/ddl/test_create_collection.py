"""``_shardsvrCreateCollection`` on real shards."""

from typing import Any

import pytest
from bson import MaxKey, MinKey
from bson.timestamp import Timestamp

from tests.shardd.mini_cluster import MiniCluster
from tests.shardd.router_stand_in import ShardedNamespace


def chunk_owners(sharded: ShardedNamespace) -> list[str]:
    return [chunk["shard"] for chunk in sharded.chunks()]


def attempt(mini: MiniCluster, namespace: str, **fields: Any) -> dict[str, Any]:  # noqa: ANN401 - fields of the command
    """The reply of an attempt, which may fail."""
    db, _, collection = namespace.partition(".")
    version = mini.create_database(db, "sh0")
    with mini.shard_client("sh0") as client:
        return dict(
            client[db].command(
                {"_shardsvrCreateCollection": collection, **fields, "databaseVersion": version}, check=False
            )
        )


def test_a_ranged_key_begins_with_one_chunk_on_the_primary_shard(mini: MiniCluster, db: str) -> None:
    sharded = ShardedNamespace(mini, f"{db}.c", {"a": 1, "b": 1}, "sh1")
    (chunk,) = sharded.chunks()
    assert (chunk["min"], chunk["max"]) == ({"a": MinKey(), "b": MinKey()}, {"a": MaxKey(), "b": MaxKey()})
    assert (chunk["shard"], chunk["lastmod"]) == ("sh1", Timestamp(1, 0))
    entry = sharded.entry()
    assert sharded.created["collectionUUID"] == entry["uuid"]
    assert sharded.created["collectionVersion"] == {
        "t": entry["timestamp"],
        "e": entry["lastmodEpoch"],
        "v": Timestamp(1, 0),
    }
    with mini.shard_client("sh1") as client:
        assert "a_1_b_1" in client[db].c.index_information()


def test_a_hashed_key_is_spread_over_the_shards_under_one_uuid(mini: MiniCluster, db: str) -> None:
    sharded = ShardedNamespace(mini, f"{db}.c", {"a": "hashed"}, "sh0")
    assert chunk_owners(sharded) == ["sh0", "sh0", "sh1", "sh1"]
    for shard in ("sh0", "sh1"):
        with mini.shard_client(shard) as client:
            (collection,) = client[db].list_collections()
            assert collection["info"]["uuid"] == sharded.entry()["uuid"]
            assert "a_hashed" in client[db].c.index_information()


def test_the_number_of_chunks_can_be_chosen_for_an_empty_hashed_collection(mini: MiniCluster, db: str) -> None:
    assert attempt(mini, f"{db}.c", shardKey={"a": "hashed"}, numInitialChunks=6)["ok"] == 1.0
    with mini.config_client() as config:
        entry = config.config.collections.find_one({"_id": f"{db}.c"})
        assert entry is not None
        assert config.config.chunks.count_documents({"uuid": entry["uuid"]}) == 6
    assert attempt(mini, f"{db}.r", shardKey={"a": 1}, numInitialChunks=6)["code"] == 72


def test_existing_data_stays_where_it_is(mini: MiniCluster, db: str) -> None:
    mini.create_database(db, "sh0")
    with mini.shard_client("sh0") as client:
        client[db].c.insert_many([{"_id": number, "a": number} for number in range(10)])
        client[db].c.create_index([("a", "hashed")])
    sharded = ShardedNamespace(mini, f"{db}.c", {"a": "hashed"}, "sh0")
    assert chunk_owners(sharded) == ["sh0"]
    assert len(sharded.documents()) == 10


def test_existing_data_needs_an_index(mini: MiniCluster, db: str) -> None:
    mini.create_database(db, "sh0")
    with mini.shard_client("sh0") as client:
        client[db].c.insert_one({"a": 1})
        client[db].c.create_index("a", sparse=True)
        reply = attempt(mini, f"{db}.c", shardKey={"a": 1})
        assert (reply["code"], reply["codeName"]) == (72, "InvalidOptions")
        client[db].c.create_index([("a", 1), ("b", -1)])
    assert attempt(mini, f"{db}.c", shardKey={"a": 1})["ok"] == 1.0


def test_a_multikey_index_is_not_enough(mini: MiniCluster, db: str) -> None:
    mini.create_database(db, "sh0")
    with mini.shard_client("sh0") as client:
        client[db].c.insert_one({"a": [1, 2]})
        client[db].c.create_index("a")
    assert attempt(mini, f"{db}.c", shardKey={"a": 1})["ok"] == 0.0


def test_a_unique_index_has_to_begin_with_the_shard_key(mini: MiniCluster, db: str) -> None:
    mini.create_database(db, "sh0")
    with mini.shard_client("sh0") as client:
        client[db].c.create_index("b", unique=True)
    reply = attempt(mini, f"{db}.c", shardKey={"a": 1})
    assert reply["code"] == 72
    assert "Uniqueness can't be maintained unless shard key is a prefix" in reply["errmsg"]


def test_a_unique_key_gets_a_unique_index(mini: MiniCluster, db: str) -> None:
    assert attempt(mini, f"{db}.c", shardKey={"a": 1}, unique=True)["ok"] == 1.0
    with mini.shard_client("sh0") as client:
        assert client[db].c.index_information()["a_1"]["unique"] is True
    assert attempt(mini, f"{db}.h", shardKey={"a": "hashed"}, unique=True)["code"] == 72


def test_a_repetition_succeeds_and_other_options_are_refused(mini: MiniCluster, db: str) -> None:
    first = attempt(mini, f"{db}.c", shardKey={"a": 1})
    again = attempt(mini, f"{db}.c", shardKey={"a": 1})
    assert again["collectionVersion"] == first["collectionVersion"]
    assert attempt(mini, f"{db}.c", shardKey={"b": 1})["code"] == 23
    assert attempt(mini, f"{db}.c", shardKey={"a": 1}, unique=True)["code"] == 23


def test_strings_are_ordered_by_the_simple_collation(mini: MiniCluster, db: str) -> None:
    mini.create_database(db, "sh0")
    with mini.shard_client("sh0") as client:
        client[db].create_collection("c", collation={"locale": "fr"})
    assert attempt(mini, f"{db}.c", shardKey={"a": 1})["code"] == 2
    assert attempt(mini, f"{db}.c", shardKey={"a": 1}, collation={"locale": "fr"})["code"] == 2
    assert attempt(mini, f"{db}.c", shardKey={"a": 1}, collation={"locale": "simple"})["ok"] == 1.0
    with mini.config_client() as config:
        entry = config.config.collections.find_one({"_id": f"{db}.c"})
    assert entry is not None
    assert entry["defaultCollation"]["locale"] == "fr"
    with mini.shard_client("sh0") as client:
        assert "collation" not in client[db].c.index_information()["a_1"]


def test_other_shards_get_the_same_index_if_the_collection_has_a_collation(mini: MiniCluster, db: str) -> None:
    """An index of another collation would be unusable for moves and splits."""
    mini.create_database(db, "sh0")
    with mini.shard_client("sh0") as client:
        client[db].create_collection("c", collation={"locale": "fr"})
        client[db].c.create_index("text")
    assert attempt(mini, f"{db}.c", shardKey={"a": "hashed"}, collation={"locale": "simple"})["ok"] == 1.0
    with mini.shard_client("sh0") as first, mini.shard_client("sh1") as second:
        indexes = second[db].c.index_information()
        assert indexes == first[db].c.index_information()
    assert "collation" not in indexes["a_hashed"]
    assert indexes["text_1"]["collation"]["locale"] == "fr"


@pytest.mark.parametrize(
    ("creation", "code"),
    [({"capped": True, "size": 4096}, 72), ({"viewOn": "other"}, 166)],
)
def test_collections_that_cannot_be_sharded(mini: MiniCluster, db: str, creation: dict[str, Any], code: int) -> None:
    mini.create_database(db, "sh0")
    with mini.shard_client("sh0") as client:
        client[db].command({"create": "c", **creation})
    assert attempt(mini, f"{db}.c", shardKey={"a": 1})["code"] == code


def test_a_name_too_long_for_the_cache_of_its_chunks_is_refused(mini: MiniCluster, db: str) -> None:
    mini.create_database(db, "sh0")
    reply = attempt(mini, f"{db}.{'x' * 235}", shardKey={"a": 1})
    assert (reply["code"], reply["errmsg"]) == (73, f"Namespace too long. Namespace: {db}.{'x' * 235} Max: 235")


def test_existing_zones_determine_the_chunks(mini: MiniCluster, db: str) -> None:
    namespace = f"{db}.c"
    with mini.config_client() as config:
        majority = {"w": "majority"}
        config.admin.command({"_configsvrAddShardToZone": "sh1", "zone": db, "writeConcern": majority})
        zone = {"min": {"a": 0}, "max": {"a": 10}, "zone": db}
        config.admin.command({"_configsvrUpdateZoneKeyRange": namespace, **zone, "writeConcern": majority})
    sharded = ShardedNamespace(mini, namespace, {"a": 1}, "sh0")
    owners = {chunk["min"]["a"]: chunk["shard"] for chunk in sharded.chunks()}
    assert owners[0] == "sh1"
    assert len(owners) == 3


def test_the_changelog_records_it(mini: MiniCluster, db: str) -> None:
    sharded = ShardedNamespace(mini, f"{db}.c", {"a": "hashed"}, "sh0")
    with mini.config_client() as config:
        entries = list(config.config.changelog.find({"ns": sharded.namespace}).sort("time", 1))
    assert [entry["what"] for entry in entries] == ["shardCollection.start", "shardCollection.end"]
    begun, done = (entry["details"] for entry in entries)
    assert begun["markedAfter"] < done["markedUntil"], "between them is the mark for change streams"
    key = {"shardKey": {"a": "hashed"}}
    own = {"markedAfter": begun["markedAfter"], "request": key}
    assert begun == {**key, "collection": sharded.namespace, "primary": "sh0", **own}
    assert done["numChunks"] == 4


def test_only_the_primary_shard_accepts_the_command(mini: MiniCluster, db: str) -> None:
    version = mini.create_database(db, "sh0")
    with mini.shard_client("sh1") as client:
        command = {"_shardsvrCreateCollection": "c", "shardKey": {"a": 1}}
        assert client[db].command(command, check=False)["code"] == 20
        assert client[db].command({**command, "databaseVersion": version}, check=False)["code"] == 20
