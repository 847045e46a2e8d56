"""A change that reaches mongod late spares a collection that was created since under the same name."""

from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from shardwright.daemon.sidecar.mongod import LocalMongod
from shardwright.shardd.local_mongod import local_collections
from shardwright.sharding.namespace import Namespace
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.shardd.lone_mongod import LoneMongod, lone_mongod

NAMESPACE = Namespace("late", "c")
INDEX = {"key": {"a": 1}, "name": "a_1"}
CHANGES: list[dict[str, Any]] = [
    {"collMod": "c", "validator": {"a": 1}},
    {"createIndexes": "c", "indexes": [INDEX]},
    {"dropIndexes": "c", "index": "a_1"},
]


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoneMongod]:
    with lone_mongod(tmp_path_factory.mktemp("late")) as mongod:
        yield mongod


class SlowMongod(LocalMongod):
    """A mongod that changes of a collection reach only after it has been dropped, and possibly recreated."""

    def __init__(self, mongod: LocalMongod, *, is_created_again: bool) -> None:
        self.__dict__.update(mongod.__dict__)
        self.is_created_again = is_created_again

    async def command(self, db: str, command: Mapping[str, Any]) -> dict[str, Any]:
        if "listCollections" not in command:
            await self.pool.command(db, {"drop": "c"})
            if self.is_created_again:
                await create(self)
        return await self.pool.command(db, command)


async def create(mongod: LocalMongod) -> None:
    await mongod.pool.command("late", {"create": "c"})
    await mongod.pool.command("late", {"createIndexes": "c", "indexes": [INDEX]})


@pytest.mark.parametrize("is_created_again", [True, False])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: next(iter(change)))
def test_another_collection_is_not_changed(lone: LoneMongod, change: dict[str, Any], *, is_created_again: bool) -> None:
    async def check(mongod: LocalMongod) -> None:
        if await local_collections.describe(mongod, NAMESPACE) is not None:
            await mongod.pool.command("late", {"drop": "c"})
        await create(mongod)
        slow = SlowMongod(mongod, is_created_again=is_created_again)
        with pytest.raises(CommandError) as caught:
            await local_collections.change(slow, NAMESPACE, change)
        gone = {ErrorCode.CollectionUUIDMismatch, ErrorCode.NamespaceNotFound}
        assert caught.value.code in gone
        left = await local_collections.describe(mongod, NAMESPACE)
        assert (left is not None) == is_created_again
        if left is not None:
            assert "validator" not in left.options
            assert [each["name"] for each in await local_collections.list_indexes(mongod, NAMESPACE)] == ["_id_", "a_1"]

    lone.run(check)


def test_a_view_is_changed_nevertheless(lone: LoneMongod) -> None:
    async def check(mongod: LocalMongod) -> None:
        await mongod.pool.command("late", {"create": "v", "viewOn": "c", "pipeline": []})
        view = Namespace("late", "v")
        changed = [{"$match": {"a": 1}}]
        await local_collections.change(mongod, view, {"collMod": "v", "viewOn": "c", "pipeline": changed})
        found = await local_collections.describe(mongod, view)
        assert found is not None
        assert found.options["pipeline"] == changed

    lone.run(check)
