"""The commands of the config server, on a genuine cluster and on ours: equal replies, errors and documents."""

from collections.abc import Callable
from difflib import unified_diff
from typing import Any, Final

import pytest
from bson.binary import Binary
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from tests.interop.deployment import HIGH, LOW, Deployment, Document
from tests.wire.malformed_addresses import MALFORMED_ADDRESSES, MALFORMED_CONNECTION_STRINGS

Dialogue = Callable[[Deployment], Any]
Compare = Callable[[Dialogue], None]

OTHER_EPOCH: Final = ObjectId("5" * 24)
OTHER_UUID: Final = Binary(b"5" * 16, 4)


@pytest.fixture
def compare(both: tuple[Deployment, Deployment]) -> Compare:
    """Run the same dialogue with both, and check that the results are equivalent."""
    genuine, ours = both

    def have(dialogue: Dialogue) -> None:
        expected, found = genuine.normal(dialogue(genuine)), ours.normal(dialogue(ours))
        difference = "\n".join(unified_diff(expected, found, "genuine", "ours", lineterm="", n=8))
        assert not difference, difference

    return have


def code(reply: Document) -> tuple[Any, Any]:
    """An error without its message, for cases where the text is not MongoDB's."""
    return reply.get("code"), reply.get("codeName")


def test_create_database(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        def create(name: object, **fields: Any) -> Document:  # noqa: ANN401 - any field
            return deployment.on_config({"_configsvrCreateDatabase": name, **fields})

        first, second = deployment.shard_ids
        return [
            deployment.on_config({"_configsvrCreateDatabase": "cc_none"}, write_concern=None),
            create("cc_created", primaryShardId=first),
            create("cc_created", primaryShardId=first),
            create("cc_created", enableSharding=True),
            create("cc_created", primaryShardId=second),
            create("CC_created"),
            create("cc created"),
            create("local"),
            create("admin"),
            create("config"),
            create("cc_nowhere", primaryShardId="nowhere"),
            create(5),
            list(deployment.config.config.databases.find({"_id": {"$regex": "^cc_"}}).sort("_id")),
        ]

    compare(dialogue)


def sharded(deployment: Deployment, name: str, *points: int) -> tuple[str, Document]:
    """A new collection with chunks on shard 0, split at the given points; its name and its entry."""
    namespace = f"cc.{name}"
    reply = deployment.shard_collection(namespace, {"x": 1})
    assert reply["ok"], reply
    entry = deployment.entry(namespace)
    if points:
        assert split(deployment, entry, LOW, HIGH, *points)["ok"]
    return namespace, entry


def split(deployment: Deployment, entry: Document, low: object, high: object, *points: int, **fields: Any) -> Document:  # noqa: ANN401 - any field
    return deployment.on_config(
        {
            "_configsvrCommitChunkSplit": entry["_id"],
            "collEpoch": entry["lastmodEpoch"],
            "min": {"x": low},
            "max": {"x": high},
            "splitPoints": [{"x": point} for point in points],
            "shard": deployment.shard_ids[0],
            **fields,
        }
    )


def test_split(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        namespace, entry = sharded(deployment, "split")
        return [
            split(deployment, entry, LOW, HIGH, 0, 10),
            split(deployment, entry, 0, 10, 5),
            split(deployment, entry, LOW, 0, -5, collEpoch=OTHER_EPOCH),
            split(deployment, entry, 10, HIGH, 7),
            split(deployment, entry, 10, HIGH, 30, 20),
            split(deployment, entry, 10, HIGH, 10),
            split(deployment, entry, LOW, 0, -5, _configsvrCommitChunkSplit="cc.unknown"),
            code(split(deployment, entry, LOW, 0, -5, shard=deployment.shard_ids[1])),
            code(split(deployment, entry, LOW, 3, -5)),
            deployment.chunks(namespace),
            [
                {name: value for name, value in change.items() if name not in ("_id", "server", "clientAddr")}
                for change in deployment.changes(namespace)
                if "split" in change["what"]
            ],
        ]

    compare(dialogue)


def test_merge(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        namespace, entry = sharded(deployment, "merge", 0, 10, 20)

        def merge(low: object, high: object, **fields: Any) -> Document:  # noqa: ANN401 - any field
            return deployment.on_config(
                {
                    "_configsvrCommitChunksMerge": namespace,
                    "shard": deployment.shard_ids[0],
                    "collUUID": {"uuid": entry["uuid"]},
                    "chunkRange": {"min": {"x": low}, "max": {"x": high}},
                    "validAfter": entry["timestamp"],
                    "epoch": entry["lastmodEpoch"],
                    "timestamp": entry["timestamp"],
                    **fields,
                }
            )

        return [
            merge(LOW, 10),
            merge(LOW, 10),
            merge(10, HIGH, epoch=OTHER_EPOCH),
            merge(10, HIGH, timestamp=Timestamp(1, 1)),
            code(merge(10, HIGH, collUUID={"uuid": OTHER_UUID})),
            merge(11, HIGH),
            merge(10, 5),
            merge(10, HIGH, shard=deployment.shard_ids[1]),
            deployment.chunks(namespace),
            [
                {name: value for name, value in change.items() if name not in ("_id", "server", "clientAddr")}
                for change in deployment.changes(namespace)
                if change["what"] == "merge"
            ],
        ]

    compare(dialogue)


def test_migration(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        namespace, entry = sharded(deployment, "migration", 0, 10, 20)
        first, second = deployment.shard_ids

        def migrate(low: object, high: object, **fields: Any) -> Document:  # noqa: ANN401 - any field
            newest = max(chunk["lastmod"] for chunk in deployment.chunks(namespace))
            now = deployment.config.admin.command("ping")["$clusterTime"]["clusterTime"]
            return deployment.on_config(
                {
                    "_configsvrCommitChunkMigration": namespace,
                    "fromShard": first,
                    "toShard": second,
                    "migratedChunk": {
                        "min": {"x": low},
                        "max": {"x": high},
                        "lastmod": deployment.version(namespace, newest),
                    },
                    "fromShardCollectionVersion": deployment.version(namespace, newest),
                    "validAfter": now,
                    **fields,
                }
            )

        stale = {"t": entry["timestamp"], "e": OTHER_EPOCH, "v": Timestamp(1, 0)}
        allow = {"_configsvrSetAllowMigrations": namespace}
        return [
            migrate(0, 10),
            migrate(0, 10),
            migrate(3, 7),
            migrate(12, 15),
            migrate(20, HIGH, fromShardCollectionVersion=stale),
            migrate(15, 25),
            migrate(20, HIGH, toShard="nowhere"),
            migrate(20, HIGH, _configsvrCommitChunkMigration="cc.unknown"),
            deployment.on_config({**allow, "allowMigrations": False}),
            migrate(20, HIGH),
            deployment.entry(namespace),
            deployment.on_config({**allow, "allowMigrations": True}),
            deployment.on_config({**allow, "allowMigrations": True, "collectionUUID": OTHER_UUID}),
            deployment.on_config({"_configsvrSetAllowMigrations": "cc.unknown", "allowMigrations": True}),
            deployment.entry(namespace),
            migrate(20, HIGH),
            migrate(10, 12),
            migrate(15, 20),
            migrate(LOW, 0),
            sorted(deployment.chunks(namespace), key=lambda chunk: chunk["lastmod"]),
        ]

    compare(dialogue)


def test_jumbo_flag_and_ensured_versions(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        namespace, entry = sharded(deployment, "bumps", 0, 10)

        def clear(low: object, high: object, **fields: Any) -> Document:  # noqa: ANN401 - any field
            bounds = {"minKey": {"x": low}, "maxKey": {"x": high}}
            return deployment.on_config(
                {"_configsvrClearJumboFlag": namespace, "epoch": entry["lastmodEpoch"], **bounds, **fields}
            )

        def ensure(version: Timestamp, **fields: Any) -> Document:  # noqa: ANN401 - any field
            return deployment.on_config(
                {
                    "_configsvrEnsureChunkVersionIsGreaterThan": 1,
                    "nss": namespace,
                    "collectionUUID": entry["uuid"],
                    "minKey": {"x": LOW},
                    "maxKey": {"x": 0},
                    "version": deployment.version(namespace, version),
                    **fields,
                }
            )

        replies = [
            clear(0, 10),
            clear(0, 10, epoch=OTHER_EPOCH),
            clear(0, 11),
            clear(0, 10, _configsvrClearJumboFlag="cc.unknown"),
        ]
        deployment.config.config.chunks.update_one({"uuid": entry["uuid"], "max": {"x": 10}}, {"$set": {"jumbo": True}})
        return [
            *replies,
            clear(0, 10),
            ensure(Timestamp(1, 0)),
            deployment.chunks(namespace),
            ensure(Timestamp(1, 1)),
            deployment.chunks(namespace),
            ensure(Timestamp(1, 1)),
            ensure(Timestamp(9, 9), nss="cc.unknown"),
            ensure(Timestamp(9, 9), collectionUUID=OTHER_UUID),
            deployment.chunks(namespace),
        ]

    compare(dialogue)


def test_repaired_chunk_history(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        namespace, entry = sharded(deployment, "repaired", 0, 10)
        chunks = deployment.config.config.chunks

        def repair(**fields: Any) -> Document:  # noqa: ANN401 - any field
            return deployment.on_config({"_configsvrRepairShardedCollectionChunksHistory": namespace, **fields})

        def history_begins_anew(before: list[Document], after: list[Document]) -> list[bool]:
            return [
                was["history"][0]["validAfter"] < now["history"][0]["validAfter"]
                for was, now in zip(before, after, strict=True)
            ]

        steps: list[Any] = []
        for fields in ({}, {}, {"force": False}, {"force": True}, {"force": 1}):
            before = deployment.chunks(namespace)
            steps += [repair(**fields), history_begins_anew(before, deployment.chunks(namespace))]
            steps += [deployment.chunks(namespace)]
        chunks.update_one({"uuid": entry["uuid"], "max": {"x": 10}}, {"$set": {"history": []}})
        steps += [repair(), deployment.chunks(namespace)]
        chunks.update_one({"uuid": entry["uuid"], "max": {"x": 0}}, {"$unset": {"historyIsAt40": 1}})
        steps += [repair(), deployment.chunks(namespace)]
        return [
            *steps,
            repair(_configsvrRepairShardedCollectionChunksHistory="cc.unknown"),
            repair(_configsvrRepairShardedCollectionChunksHistory="cc"),
            repair(_configsvrRepairShardedCollectionChunksHistory=5),
            deployment.on_config({"_configsvrRepairShardedCollectionChunksHistory": namespace}, write_concern=None),
        ]

    compare(dialogue)


def test_zones(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        namespace, _ = sharded(deployment, "zones")
        shard = deployment.shard_ids[0]

        def add(**fields: Any) -> Document:  # noqa: ANN401 - any field
            return deployment.on_config({"_configsvrAddShardToZone": shard, "zone": "cc-zone", **fields})

        def remove(**fields: Any) -> Document:  # noqa: ANN401 - any field
            return deployment.on_config({"_configsvrRemoveShardFromZone": shard, "zone": "cc-zone", **fields})

        def update(low: Document, high: Document, **fields: Any) -> Document:  # noqa: ANN401 - any field
            command = {"_configsvrUpdateZoneKeyRange": namespace, "min": low, "max": high, "zone": "cc-zone"}
            return deployment.on_config({**command, **fields})

        def tags() -> list[Document]:
            return list(deployment.config.config.tags.find({"ns": {"$regex": "^cc"}}).sort([("ns", 1), ("min", 1)]))

        other = {"_configsvrUpdateZoneKeyRange": "cc.other"}
        return [
            add(),
            add(),
            add(_configsvrAddShardToZone="nowhere"),
            update({"x": 1}, {"x": 5}),
            update({"x": 1}, {"x": 5}),
            update({"x": 5}, {"x": HIGH}),
            update({"x": 1}, {"x": 5}, zone="unknown"),
            update({"x": 3}, {"x": 9}),
            update({"y": 3}, {"y": 9}),
            update({"x": 9}, {"x": 3}),
            update({"a": 1}, {"a": 5}, **other),
            update({"b": 1}, {"b": 5}, **other),
            tags(),
            remove(),
            remove(zone="unknown"),
            remove(_configsvrRemoveShardFromZone="nowhere"),
            update({"x": 1}, {"x": 5}, zone=None),
            update({"x": 1}, {"x": 5}, zone=None),
            deployment.on_config({"_configsvrRemoveTags": namespace}),
            tags(),
            update({"x": 5}, {"x": HIGH}, zone=None),
            update({"a": 1}, {"a": 5}, zone=None, **other),
            remove(),
            remove(),
            tags(),
            [document["tags"] for document in deployment.config.config.shards.find({"_id": shard, "tags": "cc-zone"})],
            deployment.config.config.shards.count_documents({"_id": shard, "tags": {"$type": "array"}}),
        ]

    compare(dialogue)


def test_balancer(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        def status() -> Document:
            reply = deployment.on_config({"_configsvrBalancerStatus": 1}, write_concern=None)
            assert reply.pop("numBalancerRounds") >= 0
            assert reply.pop("inBalancerRound") in ((False,) if reply["mode"] == "off" else (False, True))
            assert reply.pop("term") >= 1
            return reply

        settings = deployment.config.config.settings
        ids = {"_id": {"$in": ["balancer", "autosplit"]}}
        return [
            deployment.on_config({"_configsvrBalancerStatus": 1}),
            deployment.on_config({"_configsvrBalancerStop": 1}, write_concern=None),
            status(),
            list(settings.find(ids).sort("_id")),
            deployment.on_config({"_configsvrBalancerStart": 1}, write_concern=None),
            status(),
            list(settings.find(ids).sort("_id")),
            [
                action["what"]
                for action in deployment.config.config.actionlog.find({"what": {"$ne": "balancer.round"}})
                .sort("$natural", -1)
                .limit(2)
            ],
            deployment.on_config({"_configsvrBalancerStop": 1}, write_concern=None),
        ]

    compare(dialogue)


def test_add_shard(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        shard = deployment.shard_ids[0]
        entry = deployment.config.config.shards.find_one({"_id": shard})
        assert entry is not None
        entry.pop("tags", None)
        _, _, host = entry["host"].partition("/")

        def add(target: str, **fields: Any) -> Document:  # noqa: ANN401 - any field
            return deployment.on_config({"_configsvrAddShard": target, **fields})

        return [
            entry,
            add(entry["host"]),
            add(entry["host"], name=shard),
            add(entry["host"], name="other"),
            add(host),
            add(f"other/{host}"),
            add(""),
            add("set/"),
            add("set/host:1"),
            add("set/127.0.0.1:1", name=""),
            *(add(f"set/{address}") for address in MALFORMED_ADDRESSES if "/" not in address),
            *map(add, (*MALFORMED_ADDRESSES, *MALFORMED_CONNECTION_STRINGS, "set/host:99999999999")),
            deployment.on_config({"_configsvrAddShard": entry["host"]}, write_concern=None),
        ]

    compare(dialogue)


def test_indexes_and_capped_collections(compare: Compare) -> None:
    def dialogue(deployment: Deployment) -> list[Any]:
        names = ["shards", "databases", "collections", "chunks", "tags", "migrations", "locks", "lockpings", "version"]
        config = deployment.config.config
        return [
            [sorted(map(dict, config[name].list_indexes()), key=lambda index: str(index["name"])) for name in names],
            [
                next(iter(config.list_collections(filter={"name": name})))["options"]
                for name in ("changelog", "actionlog")
            ],
            [config.version.find_one({})],
        ]

    compare(dialogue)


_OF_ONE_SERVER: Final = frozenset(
    {
        *("topologyVersion", "hosts", "setName", "setVersion", "primary", "me", "electionId", "lastWrite"),
        *("localTime", "connectionId"),
    }
)


@pytest.mark.parametrize("more", [{}, {"helloOk": True}], ids=str)
@pytest.mark.parametrize("name", ["hello", "isMaster"])
def test_hello_of_a_config_server_and_of_a_shard(compare: Compare, name: str, more: Document) -> None:
    """The fields and their order; ours also lists extensions of the protocol."""

    def dialogue(deployment: Deployment) -> list[Any]:
        replies = deployment.on_config({name: 1, **more}, write_concern=None), deployment.on_shard(0, {name: 1, **more})
        return [
            [[field, "" if field in _OF_ONE_SERVER else value] for field, value in reply.items()]
            for reply in (dict(each) for each in replies)
            if reply.pop("extensions", True)
        ]

    compare(dialogue)
