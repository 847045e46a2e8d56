"""Transactions on the catalog that conflict with other writes."""

from collections.abc import Awaitable, Callable

import bson
import pytest
import trio

from shardwright.configd.catalog.transactions import ATTEMPTS_MAX, Transaction, run_transaction
from shardwright.daemon.metrics import Counter
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.configd.catalog_user import CatalogUser
from tests.configd.in_process import FaultyMongod, in_process
from tests.shardd.mini_cluster import Set


def on_mongod(config_set: Set, body: Callable[[FaultyMongod], Awaitable[None]]) -> None:
    async def main() -> None:
        async with in_process(config_set) as server:
            await body(server.mongod)

    trio.run(main)


@pytest.fixture(autouse=True)
def _documents(catalog: CatalogUser) -> None:
    catalog.config.settings.delete_many({"_id": {"$in": ["one", "two"]}})
    catalog.config.settings.insert_one({"_id": "one", "value": 1, "list": [1, {"a": None}]})


def test_transaction_that_conflicts_with_a_change_starts_again(catalog: CatalogUser, config_set: Set) -> None:
    seen: list[int] = []

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("settings", {"_id": "one"})
        assert document is not None
        seen.append(document["value"])
        if len(seen) < 3:
            catalog.config.settings.update_one({"_id": "one"}, {"$inc": {"value": 10}})
        transaction.put("settings", [{**document, "value": document["value"] + 1}])

    conflicts = Counter()

    async def body(mongod: FaultyMongod) -> None:
        await run_transaction(mongod, work, conflicts)

    on_mongod(config_set, body)
    assert seen == [1, 11, 21]
    assert conflicts.value == 2
    found = catalog.config.settings.find_one({"_id": "one"})
    assert found == {"_id": "one", "value": 22, "list": [1, {"a": None}]}


def test_transaction_that_relied_on_absence_starts_again(catalog: CatalogUser, config_set: Set) -> None:
    seen: list[object] = []

    async def work(transaction: Transaction) -> None:
        seen.append(await transaction.find_one("settings", {"_id": "two"}))
        if len(seen) == 1:
            catalog.config.settings.insert_one({"_id": "two"})
            transaction.put("settings", [{"_id": "two", "overwritten": True}])

    async def body(mongod: FaultyMongod) -> None:
        await run_transaction(mongod, work)

    on_mongod(config_set, body)
    assert seen == [None, {"_id": "two"}]
    assert catalog.config.settings.find_one({"_id": "two"}) == {"_id": "two"}


def test_transaction_that_keeps_conflicting_gives_up(catalog: CatalogUser, config_set: Set) -> None:
    attempts = 0

    async def work(transaction: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        document = await transaction.find_one("settings", {"_id": "one"})
        catalog.config.settings.update_one({"_id": "one"}, {"$inc": {"value": 1}})
        transaction.put("settings", [{**(document or {}), "_id": "two"}])

    async def body(mongod: FaultyMongod) -> None:
        with pytest.raises(CommandError) as failure:
            await run_transaction(mongod, work)
        assert failure.value.code == ErrorCode.WriteConflict

    on_mongod(config_set, body)
    assert attempts == ATTEMPTS_MAX
    assert catalog.config.settings.find_one({"_id": "two"}) is None


def test_transaction_writes_all_or_nothing(catalog: CatalogUser, config_set: Set) -> None:
    async def work(transaction: Transaction) -> None:
        transaction.put("settings", [{"_id": "two", "value": 2}])
        # The host of a shard is unique.
        transaction.put("shards", [{"_id": "doubled", "host": catalog.config.shards.find_one({})["host"]}])  # type: ignore[index]

    async def body(mongod: FaultyMongod) -> None:
        with pytest.raises(CommandError) as failure:
            await run_transaction(mongod, work)
        assert failure.value.code == ErrorCode.DuplicateKey

    on_mongod(config_set, body)
    assert catalog.config.settings.find_one({"_id": "two"}) is None


def test_transaction_reads_one_snapshot(catalog: CatalogUser, config_set: Set) -> None:
    async def work(transaction: Transaction) -> list[object]:
        first = await transaction.find_one("settings", {"_id": "one"})
        catalog.config.settings.update_one({"_id": "one"}, {"$set": {"value": 2}})
        second = await transaction.find("settings", {"_id": "one"})
        return [first, *second]

    async def body(mongod: FaultyMongod) -> None:
        # Nothing is written, so there cannot be a conflict.
        first, second = await run_transaction(mongod, work)
        assert first == second

    on_mongod(config_set, body)


def test_transaction_whose_work_fails_writes_nothing(catalog: CatalogUser, config_set: Set) -> None:
    async def work(transaction: Transaction) -> None:
        transaction.delete("settings", ["one"])
        raise CommandError(ErrorCode.BadValue, "changed my mind")

    async def body(mongod: FaultyMongod) -> None:
        with pytest.raises(CommandError, match="changed my mind"):
            await run_transaction(mongod, work)

    on_mongod(config_set, body)
    assert catalog.config.settings.find_one({"_id": "one"}) is not None


def test_transaction_whose_snapshot_is_gone_starts_again(catalog: CatalogUser, config_set: Set) -> None:
    mongod, attempts = catalog.config.client.admin, 0

    async def work(transaction: Transaction) -> None:
        nonlocal attempts
        attempts += 1
        while True:
            document = await transaction.find_one("settings", {"_id": "one"})
            assert document is not None
            if attempts > 1:
                break
            catalog.config.settings.update_one({"_id": "one"}, {"$inc": {"value": 10}})
        transaction.put("settings", [{**document, "value": 7}])

    async def body(mongod: FaultyMongod) -> None:
        with trio.fail_after(60):
            await run_transaction(mongod, work)

    before = mongod.command("getParameter", 1, minSnapshotHistoryWindowInSeconds=1)["minSnapshotHistoryWindowInSeconds"]
    mongod.command("setParameter", 1, minSnapshotHistoryWindowInSeconds=0)
    try:
        on_mongod(config_set, body)
    finally:
        mongod.command("setParameter", 1, minSnapshotHistoryWindowInSeconds=before)
    assert attempts == 2
    found = catalog.config.settings.find_one({"_id": "one"})
    assert found is not None
    assert found["value"] == 7


@pytest.mark.parametrize(
    "changed",
    [
        {"_id": "one", "value": 2, "list": [1, {"a": None}]},
        {"_id": "one", "value": 1.0, "list": [1, {"a": None}]},
        {"_id": "one", "value": True, "list": []},
        {"_id": "one", "list": [1, {"a": 1}], "more": {"b": 1}},
        {"_id": "one", "value": 1},
        {"_id": "one", "new": 1, "value": 1, "list": [1, {"a": None}]},
        {"_id": "one", "list": [1, {"a": None}], "value": 1},
        {"_id": "one", "value": 1, "list": [1, {"a": None}]},
        {"_id": "one"},
    ],
    ids=str,
)
def test_transaction_replaces_what_it_has_read(
    catalog: CatalogUser, config_set: Set, changed: dict[str, object]
) -> None:
    """The write may carry the document or its differences, which is detected for two writes of one document."""

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("settings", {"_id": "one"})
        assert document is not None
        transaction.put("settings", [{**document, "value": 5, "between": 1}])
        transaction.put("settings", [changed])

    async def body(mongod: FaultyMongod) -> None:
        await run_transaction(mongod, work)

    on_mongod(config_set, body)
    found = catalog.config.settings.find_one({"_id": "one"})
    assert found is not None
    assert bson.encode(found) == bson.encode(changed)


def test_transaction_contains_a_large_document_once(catalog: CatalogUser, config_set: Set) -> None:
    catalog.config.settings.update_one({"_id": "one"}, {"$set": {"large": "x" * 9_000_000}})

    async def work(transaction: Transaction) -> None:
        document = await transaction.find_one("settings", {"_id": "one"})
        assert document is not None
        assert document == await transaction.find_one("settings", {"value": 1})
        transaction.put("settings", [{**document, "value": 2}])

    async def body(mongod: FaultyMongod) -> None:
        await run_transaction(mongod, work)

    on_mongod(config_set, body)
    found = catalog.config.settings.find_one({"_id": "one"}, {"value": 1})
    assert found == {"_id": "one", "value": 2}


def test_transaction_whose_second_query_would_find_another_document_starts_again(
    catalog: CatalogUser, config_set: Set
) -> None:
    seen: list[object] = []

    async def work(transaction: Transaction) -> None:
        await transaction.find_one("settings", {"_id": "one"})
        lowest = await transaction.find_one("settings", {"value": {"$exists": True}}, sort={"value": 1})
        assert lowest is not None
        seen.append(lowest["_id"])
        if len(seen) == 1:
            catalog.config.settings.insert_one({"_id": "two", "value": 0})
        transaction.put("settings", [{**lowest, "value": 7}])

    async def body(mongod: FaultyMongod) -> None:
        await run_transaction(mongod, work)

    on_mongod(config_set, body)
    assert seen == ["one", "two"]
