"""Commands to the config servers that arrive late, or are interrupted and continue in a later term."""

from collections.abc import Mapping
from typing import Any
from uuid import uuid4

import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from pymongo.errors import OperationFailure

from shardwright.configd.catalog.transactions import Commands
from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.daemon.sidecar.term_fence import Reign
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.transport.pool import ConnectionPools
from tests.configd.catalog_user import CatalogUser, Sharded
from tests.configd.fake_shard import fake_shards
from tests.configd.in_process import WRITES, in_process
from tests.shardd.mini_cluster import Set

LOW, HIGH = MinKey(), MaxKey()


def numbered(command: Mapping[str, Any], number: int) -> dict[str, Any]:
    return {**command, "txnNumber": Int64(number)}


def drop(catalog: CatalogUser, sharded: Sharded) -> None:
    catalog.run({"_configsvrCommitDropCollection": sharded.namespace, "collectionUUID": {"uuid": sharded.uuid}})


def new_collection(catalog: CatalogUser, namespace: str) -> Sharded:
    return Sharded(namespace, Binary.from_uuid(uuid4()), ObjectId(), catalog.now())


def test_a_late_create_does_not_bring_a_dropped_collection_back(catalog: CatalogUser, coordinator: CatalogUser) -> None:
    sharded = new_collection(catalog, "late.created")
    create = numbered(catalog.create_command(sharded, [(LOW, HIGH, "a")]), 1)
    coordinator.run(create)
    drop(catalog, sharded)
    assert coordinator.run(create)["ok"] == 1.0
    assert catalog.config.collections.find_one({"_id": sharded.namespace}) is None
    assert not catalog.chunks(sharded)


def test_a_create_of_an_earlier_attempt_is_refused(catalog: CatalogUser, coordinator: CatalogUser) -> None:
    sharded = new_collection(catalog, "late.earlier")
    create = catalog.create_command(sharded, [(LOW, HIGH, "a")])
    coordinator.run(numbered(create, 2))
    drop(catalog, sharded)
    with pytest.raises(OperationFailure) as failure:
        coordinator.run(numbered(create, 1))
    assert failure.value.code == ErrorCode.TransactionTooOld
    assert catalog.config.collections.find_one({"_id": sharded.namespace}) is None


def test_a_create_is_refused_after_a_refusal_of_a_later_command(catalog: CatalogUser, coordinator: CatalogUser) -> None:
    """Its coordinator has read since that the collection is not sharded."""
    sharded = new_collection(catalog, "late.refused")
    allow = numbered({"_configsvrSetAllowMigrations": sharded.namespace, "allowMigrations": True}, 2)
    for _ in range(2):
        with pytest.raises(OperationFailure) as failure:
            coordinator.run(allow)
        assert failure.value.code == ErrorCode.NamespaceNotSharded
    with pytest.raises(OperationFailure) as failure:
        coordinator.run(numbered(catalog.create_command(sharded, [(LOW, HIGH, "a")]), 1))
    assert failure.value.code == ErrorCode.TransactionTooOld
    assert catalog.config.collections.find_one({"_id": sharded.namespace}) is None


def test_migrations_are_not_forbidden_late(catalog: CatalogUser, coordinator: CatalogUser) -> None:
    """Otherwise they would remain forbidden after the change of the collection has ended."""
    sharded = catalog.shard_collection("late.forbidden")
    change = {"_configsvrSetAllowMigrations": sharded.namespace, "collectionUUID": sharded.uuid}
    forbid, allow = (numbered({**change, "allowMigrations": bool(number)}, number) for number in range(2))
    for each in (forbid, forbid, allow, allow):
        assert coordinator.run(each)["ok"] == 1.0
    with pytest.raises(OperationFailure) as failure:
        coordinator.run(forbid)
    assert failure.value.code == ErrorCode.TransactionTooOld
    entry = catalog.config.collections.find_one({"_id": sharded.namespace})
    assert entry is not None
    assert "allowMigrations" not in entry


def test_a_late_refinement_is_refused(catalog: CatalogUser, coordinator: CatalogUser) -> None:
    """Its coordinator has since found the key unrefined, and given up because an index is missing."""
    sharded = catalog.shard_collection("late.unrefined")
    refine = {"_configsvrRefineCollectionShardKey": sharded.namespace, "key": {"x": 1, "y": 1}, "epoch": sharded.epoch}
    allow = {"_configsvrSetAllowMigrations": sharded.namespace, "collectionUUID": sharded.uuid, "allowMigrations": True}
    coordinator.run(numbered(allow, 2))
    with pytest.raises(OperationFailure) as failure:
        coordinator.run(numbered(refine, 1))
    assert failure.value.code == ErrorCode.TransactionTooOld
    for _ in range(2):
        assert coordinator.run(numbered(refine, 3))["ok"] == 1.0
    entry = catalog.config.collections.find_one({"_id": sharded.namespace})
    assert entry is not None
    assert entry["key"] == {"x": 1, "y": 1}


def test_a_late_rename_leaves_a_collection_that_has_its_old_name_again(
    catalog: CatalogUser, coordinator: CatalogUser
) -> None:
    sharded = catalog.shard_collection("late.a")

    def rename(source: str, target: str, number: int) -> dict[str, Any]:
        command = {"_configsvrRenameCollectionMetadata": source, "to": target}
        return numbered({**command, "optFromCollection": {"uuid": sharded.uuid}}, number)

    forth, back = rename("late.a", "late.b", 1), rename("late.b", "late.a", 2)
    coordinator.run(forth)
    coordinator.run(forth)
    coordinator.run(back)
    with pytest.raises(OperationFailure) as failure:
        coordinator.run(forth)
    assert failure.value.code == ErrorCode.TransactionTooOld
    assert coordinator.run(back)["ok"] == 1.0
    assert [entry["_id"] for entry in catalog.config.collections.find({"uuid": sharded.uuid})] == ["late.a"]


def zone_range(catalog: CatalogUser, namespace: str) -> list[dict[str, Any]]:
    """Add a zone range for a collection that is not sharded; returns all its ranges."""
    catalog.config.tags.insert_one({"ns": namespace, "min": {"x": 0}, "max": {"x": 1}, "tag": "z"})
    return list(catalog.config.tags.find({"ns": namespace}))


RENAME_OVER = {
    "_configsvrRenameCollectionMetadata": "late.source",
    "to": "late.zoned",
    "targetUUID": Binary.from_uuid(uuid4()),
}


@pytest.mark.parametrize("command", [RENAME_OVER, {"_configsvrRemoveTags": "late.zoned"}], ids=["rename", "drop"])
def test_late_commands_remove_no_zones_that_have_been_added_since(
    catalog: CatalogUser, coordinator: CatalogUser, command: dict[str, Any]
) -> None:
    zone_range(catalog, "late.zoned")
    coordinator.run(numbered(command, 1))
    assert not list(catalog.config.tags.find({"ns": "late.zoned"}))
    added = zone_range(catalog, "late.zoned")
    assert coordinator.run(numbered(command, 1))["ok"] == 1.0
    assert list(catalog.config.tags.find({"ns": "late.zoned"})) == added
    catalog.config.tags.delete_many({"ns": "late.zoned"})


def test_the_record_of_an_unsharded_rename_keeps_the_zones_of_the_new_name(catalog: CatalogUser) -> None:
    """It is written after the rename, when a user may already have defined zones to shard the collection."""
    added = zone_range(catalog, "late.recorded")
    catalog.run({"_configsvrRenameCollectionMetadata": "late.source", "to": "late.recorded"})
    assert list(catalog.config.tags.find({"ns": "late.recorded"})) == added
    recorded = {"what": "renameCollection.metadata", "details": {}}
    assert [each for each in catalog.config.changelog.find(recorded) if "late.recorded" in str(each)]
    catalog.config.tags.delete_many({"ns": "late.recorded"})


@pytest.mark.parametrize("last", ["listDatabases", "_addShard", "setFeatureCompatibilityVersion"])
def test_a_candidate_hears_nothing_more_from_a_daemon_whose_term_is_over(
    config_set: Set, catalog: CatalogUser, last: str
) -> None:
    """Meanwhile another primary may have added it, and have had it block the writes of users."""
    term = catalog.client.admin.command("replSetGetStatus")["term"]
    with fake_shards(f"heard_{last}") as fakes:
        candidate = fakes[f"heard_{last}"]

        async def check_term() -> None:
            if candidate.received(last):
                raise CommandError(ErrorCode.InterruptedDueToReplStateChange, "the term is over")

        async def add() -> None:
            async with in_process(config_set, term) as daemon:
                daemon.term.shards.check_term = check_term
                with pytest.raises(CommandError) as failure:
                    await daemon.run({"_configsvrAddShard": candidate.connection_string})
                assert failure.value.code == ErrorCode.InterruptedDueToReplStateChange

        trio.run(add)
        assert last in candidate.commands[-1]
    assert catalog.config.shards.find_one({"host": candidate.connection_string}) is None


class PausedDaemon:
    """The mongod of a daemon that is paused before one of its writes, and continues in a later term.

    Attributes:
        term: the term in which the mongod is primary.
    """

    def __init__(self, pools: ConnectionPools, socket_path: str, term: int, pause_before: int) -> None:
        self.term = term
        self._writes_left = pause_before
        self._mongod = LocalMongod(pools, socket_path, "mongod:1", self._present_reign)

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if next(iter(command)) in WRITES:
            self._writes_left -= 1
            if not self._writes_left:
                self.term += 2
        return await self._mongod.command(db, command)

    async def _present_reign(self) -> Reign:
        return Reign(self.term, 1)


@pytest.mark.parametrize(("write", "chunks_left"), [(1, 1), (2, 0), (3, 1)])
def test_a_paused_command_writes_nothing_in_a_later_term(
    config_set: Set, catalog: CatalogUser, write: int, chunks_left: int
) -> None:
    """Meanwhile another primary may have added the collection: its chunks must not be deleted or replaced."""
    sharded = new_collection(catalog, f"late.paused{write}")
    create = catalog.create_command(sharded, [(LOW, HIGH, "a")])
    catalog.config.chunks.insert_one({**create["chunks"][0], "shard": "b"})
    term = catalog.client.admin.command("replSetGetStatus")["term"]

    def paused(pools: ConnectionPools, socket_path: str) -> Commands:
        return PausedDaemon(pools, socket_path, term, write)

    async def continue_later() -> None:
        async with in_process(config_set, term, paused) as daemon:
            with pytest.raises(CommandError) as failure:
                await daemon.run(create)
            assert failure.value.code == ErrorCode.InterruptedDueToReplStateChange
            assert daemon.mongod.writes == write

    trio.run(continue_later)
    assert catalog.config.collections.find_one({"_id": sharded.namespace}) is None
    assert len(catalog.chunks(sharded)) == chunks_left
