"""Ending a resharding operation in the moments in which its coordinator does not run yet, or not any more."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any
from uuid import UUID, uuid4

import pytest
import trio
from bson.binary import Binary

from shardwright.configd.catalog.transactions import Commands
from shardwright.configd.resharding.coordinator import OperationOverError, run_operation
from shardwright.configd.resharding.transitions import ReshardingStore
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.resharding_operation import ReshardingOperation
from shardwright.sharding.resharding_participation import Participation
from shardwright.sharding.shard_key import ShardKeyPattern
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import encode_document
from shardwright.wire.transport.pool import ConnectionPools
from tests.configd.catalog_user import CatalogUser
from tests.configd.in_process import InProcess, in_process
from tests.shardd.mini_cluster import Set

Begin = Callable[[InProcess], Awaitable[ReshardingOperation]]


@pytest.fixture
def begin(catalog: CatalogUser) -> Begin:
    """Persist an operation that has no running coordinator."""
    name = f"resharding_{uuid4().hex}"
    catalog.run({"_configsvrCreateDatabase": name, "primaryShardId": "a"})
    sharded = catalog.shard_collection(f"{name}.documents")

    async def begun(config: InProcess) -> ReshardingOperation:
        key = ShardKeyPattern.from_bson(encode_document({"y": 1}))
        namespace, source = Namespace.parse(sharded.namespace), UUID(bytes=bytes(sharded.uuid))
        wanted = ReshardingOperation(Participation(uuid4(), namespace, source, key, (), ()))
        return await ReshardingStore(config.term.catalog).begin(wanted)

    return begun


async def test_abort_before_the_coordinator_runs(config_set: Set, catalog: CatalogUser, begin: Begin) -> None:
    async with in_process(config_set) as config:
        operation = await begin(config)
        await config.run({"_configsvrAbortReshardCollection": str(operation.namespace)})
        assert await ReshardingStore(config.term.catalog).active() is None
        entry = catalog.config.collections.find_one({"_id": str(operation.namespace)})
        assert entry is not None
        assert entry["uuid"] == Binary.from_uuid(operation.participation.source_uuid)
        assert not entry.keys() & {"reshardingFields", "allowMigrations"}


class SlowInsertion:
    """A mongod that inserts chunks only when it is released, even if the client is gone by then.

    Attributes:
        inserting: set when the insertion has begun.
        released: the insertion may continue.
    """

    def __init__(self, mongod: Commands) -> None:
        self.inserting = trio.Event()
        self.released = trio.Event()
        self._mongod = mongod
        self._abandoned: list[tuple[str, Mapping[str, Any]]] = []

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if command.get("insert") == "chunks":
            self.inserting.set()
            try:
                await self.released.wait()
            except trio.Cancelled:
                self._abandoned.append((db, command))
                raise
        return await self._mongod.command(db, command)

    async def execute_abandoned(self) -> None:
        """Insert the chunks of clients that are gone."""
        for db, command in self._abandoned:
            await self._mongod.command(db, command)


async def test_abort_while_the_chunks_are_inserted(config_set: Set, catalog: CatalogUser, begin: Begin) -> None:
    """No chunk is left; it would block the removal of its shard."""
    mongods: list[SlowInsertion] = []

    def slow(pools: ConnectionPools, socket_path: str) -> Commands:
        mongods.append(SlowInsertion(pools[socket_path]))
        return mongods[-1]

    async with in_process(config_set, local_mongod=slow) as config:
        operation, [mongod] = await begin(config), mongods

        async def abort_while_inserting() -> None:
            await mongod.inserting.wait()
            config.term.reshardings.control(operation.id).abort()
            mongod.released.set()

        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(abort_while_inserting)
                with pytest.raises(CommandError) as caught:
                    await run_operation(config.term, operation)
            await mongod.execute_abandoned()
        assert caught.value.code == ErrorCode.ReshardCollectionAborted
        assert catalog.config.chunks.count_documents({"uuid": Binary.from_uuid(operation.id)}) == 0


async def test_commit_before_the_coordinator_runs(config_set: Set, begin: Begin) -> None:
    """It is answered although the operation is not running, and is not lost."""

    async with in_process(config_set) as config:
        operation = await begin(config)
        with trio.fail_after(10):
            await config.run({"_configsvrCommitReshardCollection": str(operation.namespace)})
        assert config.term.reshardings.control(operation.id).commit_requested.is_set()
        await config.run({"_configsvrAbortReshardCollection": str(operation.namespace)})


async def test_an_operation_that_has_ended_is_not_continued(config_set: Set, begin: Begin) -> None:
    """A command found it in the catalog just before it ended."""

    async with in_process(config_set) as config:
        operation = await begin(config)
        await config.run({"_configsvrAbortReshardCollection": str(operation.namespace)})
        with trio.fail_after(10), pytest.raises(OperationOverError):
            await run_operation(config.term, operation)
        with pytest.raises(CommandError) as caught:
            await config.run({"_configsvrAbortReshardCollection": str(operation.namespace)})
        assert caught.value.code == ErrorCode.NoSuchReshardCollection


async def test_a_request_repeated_after_an_abort_begins_nothing(config_set: Set, begin: Begin) -> None:
    """Its first answer was lost, for example because another config server became primary."""

    async with in_process(config_set) as config:
        operation = await begin(config)
        await config.run({"_configsvrAbortReshardCollection": str(operation.namespace)})
        told = {"key": {"y": 1}, "reshardingUUID": Binary.from_uuid(operation.id)}
        with trio.fail_after(10), pytest.raises(CommandError) as caught:
            await config.run({"_configsvrReshardCollection": str(operation.namespace), **told})
        assert (caught.value.code, caught.value.message) == (ErrorCode.ReshardCollectionAborted, "aborted")
        assert await ReshardingStore(config.term.catalog).active() is None
