"""Every command can be repeated after its mongod, or the daemon, has failed at any of its writes.

The same command runs on equal collections: once undisturbed, and once with a failure before or after each write, and
then again. Both must leave the same catalog.
"""

from collections.abc import Awaitable, Callable, Mapping
from itertools import count
from typing import Any

import pytest
import trio
from bson.max_key import MaxKey
from bson.min_key import MinKey

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import FakeShard, fake_shards
from tests.configd.in_process import Fault, InProcess, in_process
from tests.shardd.mini_cluster import Set

LOW, HIGH = MinKey(), MaxKey()
CHUNKS = [(LOW, 0, "a"), (0, 10, "a"), (10, HIGH, "b")]

Command = Callable[[CatalogUser, Sharded], Mapping[str, Any]]

_numbers = count()


def split(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    return {
        "_configsvrCommitChunkSplit": sharded.namespace,
        "collEpoch": sharded.epoch,
        "min": {"x": 0},
        "max": {"x": 10},
        "splitPoints": [{"x": 3}, {"x": 6}],
        "shard": "a",
    }


def merge(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    return {
        "_configsvrCommitChunksMerge": sharded.namespace,
        "shard": "a",
        "collUUID": {"uuid": sharded.uuid},
        "chunkRange": {"min": {"x": LOW}, "max": {"x": 10}},
        "validAfter": sharded.timestamp,
        "epoch": sharded.epoch,
        "timestamp": sharded.timestamp,
    }


def migrate(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    version = sharded.version(catalog.chunks(sharded)[-1]["lastmod"])
    return {
        "_configsvrCommitChunkMigration": sharded.namespace,
        "fromShard": "a",
        "toShard": "b",
        "migratedChunk": {"min": {"x": 2}, "max": {"x": 5}, "lastmod": version},
        "fromShardCollectionVersion": version,
        "validAfter": catalog.now(),
    }


def refine(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    key = {"x": 1, "y": 1}
    add_zones(catalog, sharded.namespace, "one", "two")
    return {"_configsvrRefineCollectionShardKey": sharded.namespace, "key": key, "epoch": sharded.epoch}


def drop(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    add_zones(catalog, sharded.namespace, "one", "two")
    return {"_configsvrCommitDropCollection": sharded.namespace, "collectionUUID": {"uuid": sharded.uuid}}


def add_to_zone(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    return {"_configsvrAddShardToZone": "a", "zone": sharded.namespace}


def clear_jumbo(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    catalog.config.chunks.update_one({"uuid": sharded.uuid, "min": {"x": 0}}, {"$set": {"jumbo": True}})
    return {
        "_configsvrClearJumboFlag": sharded.namespace,
        "epoch": sharded.epoch,
        "minKey": {"x": 0},
        "maxKey": {"x": 10},
    }


def ensure_version(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    return {
        "_configsvrEnsureChunkVersionIsGreaterThan": 1,
        "nss": sharded.namespace,
        "minKey": {"x": 0},
        "maxKey": {"x": 10},
        "version": sharded.version(catalog.chunks(sharded)[1]["lastmod"]),
        "collectionUUID": sharded.uuid,
    }


def repair(catalog: CatalogUser, sharded: Sharded) -> Mapping[str, Any]:
    return {"_configsvrRepairShardedCollectionChunksHistory": sharded.namespace}


def outcome(catalog: CatalogUser, sharded: Sharded) -> object:
    """Return the catalog's data about a collection, without values that differ between equal collections."""
    entry = catalog.config.collections.find_one({"_id": sharded.namespace})
    shard = catalog.config.shards.find_one({"_id": "a"})
    assert shard is not None
    return (
        entry is not None and sorted(entry),
        catalog.bounds(sharded),
        [sorted(chunk) for chunk in catalog.chunks(sharded)],
        sharded.namespace in shard.get("tags", ()),
        zones(catalog, sharded.namespace),
    )


def zones(catalog: CatalogUser, namespace: str) -> list[tuple[object, object, str]]:
    found = catalog.config.tags.find({"ns": namespace}).sort("min", 1)
    return [(each["min"], each["max"], each["tag"]) for each in found]


def add_zones(catalog: CatalogUser, namespace: str, *tags: str) -> None:
    for number, tag in enumerate(tags):
        bounds = {"min": {"x": number}, "max": {"x": number + 1}}
        catalog.config.tags.insert_one({"ns": namespace, **bounds, "tag": tag})


async def code_of(server: InProcess, command: Mapping[str, Any]) -> int:
    """The error code that a command answers, 0 when it succeeds."""
    try:
        await server.run(command)
    except CommandError as error:
        return error.code
    return 0


def run_in_process(config_set: Set, body: Callable[[InProcess], Awaitable[None]]) -> None:
    async def main() -> None:
        async with in_process(config_set) as server:
            await body(server)

    trio.run(main)


@pytest.mark.parametrize(
    "make_command", [split, merge, migrate, refine, drop, add_to_zone, clear_jumbo, ensure_version, repair]
)
def test_command_is_repeatable_after_a_crash_at_each_write(
    catalog: CatalogUser, config_set: Set, make_command: Command
) -> None:
    async def body(server: InProcess) -> None:
        undisturbed = catalog.shard_collection(f"crash.c{next(_numbers)}", CHUNKS)
        await server.run(make_command(catalog, undisturbed))
        writes = server.mongod.writes
        assert writes >= 1
        expected = outcome(catalog, undisturbed)
        for write in range(1, writes + 1):
            for is_made in (False, True):
                sharded = catalog.shard_collection(f"crash.c{next(_numbers)}", CHUNKS)
                command = make_command(catalog, sharded)
                server.mongod.writes = 0
                server.mongod.fault = Fault(write, is_made)
                code = await code_of(server, command)
                # A failure to write to the changelog does not fail the command.
                assert code == ErrorCode.InterruptedDueToReplStateChange or server.mongod.lost == "changelog"
                server.mongod.fault = None
                await server.run(command)
                assert outcome(catalog, sharded) == expected, (write, is_made)

    run_in_process(config_set, body)


def test_create_collection_is_repeatable_after_a_crash_at_each_write(catalog: CatalogUser, config_set: Set) -> None:
    async def body(server: InProcess) -> None:
        template = catalog.shard_collection(f"crash.c{next(_numbers)}", CHUNKS)
        expected = outcome(catalog, template)
        for write in (1, 2, 3):
            for is_made in (False, True):
                other = catalog.shard_collection(f"crash.c{next(_numbers)}", CHUNKS)
                command = catalog.create_command(other, CHUNKS)
                catalog.run(drop(catalog, other))
                server.mongod.writes = 0
                server.mongod.fault = Fault(write, is_made)
                with pytest.raises(CommandError) as failure:
                    await server.run(command)
                assert failure.value.code == ErrorCode.InterruptedDueToReplStateChange
                server.mongod.fault = None
                await server.run(command)
                assert outcome(catalog, other) == expected, (write, is_made)

    run_in_process(config_set, body)


@pytest.mark.parametrize("is_replacing", [False, True])
def test_rename_is_repeatable_after_a_crash_at_each_write(
    catalog: CatalogUser, config_set: Set, is_replacing: bool
) -> None:
    async def prepare() -> tuple[Sharded, str, dict[str, Any]]:
        sharded, target = catalog.shard_collection(f"crash.c{next(_numbers)}", CHUNKS), f"crash.c{next(_numbers)}"
        add_zones(catalog, sharded.namespace, "one", "two", "three")
        command: dict[str, Any] = {"_configsvrRenameCollectionMetadata": sharded.namespace, "to": target}
        command["optFromCollection"] = {"uuid": sharded.uuid}
        if is_replacing:
            replaced = catalog.shard_collection(target, CHUNKS)
            add_zones(catalog, target, "replaced", "too")
            command["targetUUID"] = replaced.uuid
        return sharded, target, command

    async def body(server: InProcess) -> None:
        sharded, target, command = await prepare()
        before = catalog.config.collections.find_one({"_id": sharded.namespace})
        assert before is not None
        await server.run(command)
        writes = server.mongod.writes
        for write in range(1, writes + 1):
            for is_made in (False, True):
                sharded, target, command = await prepare()
                server.mongod.writes = 0
                server.mongod.fault = Fault(write, is_made)
                await code_of(server, command)
                server.mongod.fault = None
                await server.run(command)
                entry = catalog.config.collections.find_one({"_id": target})
                assert entry is not None
                assert (entry["uuid"], entry.keys()) == (sharded.uuid, before.keys()), (write, is_made)
                assert [tag for _, _, tag in zones(catalog, target)] == ["one", "two", "three"], (write, is_made)
                assert zones(catalog, sharded.namespace) == []
                assert catalog.config.collections.find_one({"_id": sharded.namespace}) is None
                if is_replacing:
                    assert catalog.config.chunks.find_one({"uuid": command["targetUUID"]}) is None

    run_in_process(config_set, body)


def test_a_zone_of_the_former_name_does_not_follow_a_rename_that_was_cut_off(
    catalog: CatalogUser, config_set: Set
) -> None:
    async def body(server: InProcess) -> None:
        await server.run({"_configsvrAddShardToZone": "a", "zone": "later"})
        followed = set()
        for write in range(1, 4):
            sharded, target = catalog.shard_collection(f"crash.c{next(_numbers)}", CHUNKS), f"crash.c{next(_numbers)}"
            source = sharded.namespace
            add_zones(catalog, source, "one", "two")
            rename: dict[str, Any] = {"_configsvrRenameCollectionMetadata": source, "to": target}
            rename["optFromCollection"] = {"uuid": sharded.uuid}
            server.mongod.writes, server.mongod.fault = 0, Fault(write, is_made=True)
            assert await code_of(server, rename)
            server.mongod.fault = None
            is_renamed = catalog.config.collections.find_one({"_id": source}) is None
            later = {"min": {"x": 5}, "max": {"x": 6}, "zone": "later"}
            await server.run({"_configsvrUpdateZoneKeyRange": source, **later})
            await server.run(rename)
            assert [tag for _, _, tag in zones(catalog, target)] == [
                "one",
                "two",
                *(["later"] if not is_renamed else ()),
            ]
            assert [tag for _, _, tag in zones(catalog, source)] == (["later"] if is_renamed else [])
            followed.add(is_renamed)
        assert followed == {False, True}

    run_in_process(config_set, body)


def test_create_and_drop_database_are_repeatable_after_a_crash(catalog: CatalogUser, config_set: Set) -> None:
    async def body(server: InProcess) -> None:
        for is_made in (False, True):
            create = {"_configsvrCreateDatabase": f"crashed{next(_numbers)}", "primaryShardId": "a"}
            name = create["_configsvrCreateDatabase"]
            server.mongod.writes = 0
            server.mongod.fault = Fault(1, is_made)
            with pytest.raises(CommandError):
                await server.run(create)
            server.mongod.fault = None
            version = (await server.run(create))["databaseVersion"]
            forget = {"_configsvrCommitDropDatabase": name, "databaseVersion": version}
            server.mongod.writes = 0
            server.mongod.fault = Fault(1, is_made)
            with pytest.raises(CommandError):
                await server.run(forget)
            server.mongod.fault = None
            await server.run(forget)
            assert catalog.config.databases.find_one({"_id": name}) is None

    run_in_process(config_set, body)


def test_add_shard_is_repeatable_after_a_crash(
    catalog: CatalogUser, config_set: Set, shards: dict[str, FakeShard]
) -> None:
    async def body(server: InProcess) -> None:
        catalog.config.shards.delete_one({"_id": "b"})
        for is_made in (False, True):
            server.mongod.writes = 0
            server.mongod.fault = Fault(1, is_made)
            with pytest.raises(CommandError):
                await server.run({"_configsvrAddShard": shards["b"].connection_string})
            server.mongod.fault = None
        assert await server.run({"_configsvrAddShard": shards["b"].connection_string}) == {"shardAdded": "b", "ok": 1.0}

    run_in_process(config_set, body)


def test_remove_shard_is_repeatable_after_a_crash(catalog: CatalogUser, config_set: Set) -> None:
    """A crash before a write changes nothing; after it, the next request finds the shard draining, then gone."""
    remove = {"_configsvrRemoveShard": "crashing"}

    def draining() -> list[bool]:
        return [bool(shard.get("draining")) for shard in catalog.config.shards.find({"_id": "crashing"})]

    async def body(server: InProcess) -> None:
        expected = [[False], [True], [True], []]
        for is_made, found in zip((False, True) * 2, expected, strict=True):
            server.mongod.writes, server.mongod.fault = 0, Fault(1, is_made)
            assert await code_of(server, remove) == ErrorCode.InterruptedDueToReplStateChange
            assert draining() == found
        server.mongod.fault = None
        assert await code_of(server, remove) == ErrorCode.ShardNotFound

    with fake_shards("crashing") as shards:
        catalog.run({"_configsvrAddShard": shards["crashing"].connection_string})
        run_in_process(config_set, body)
