"""Resharding a collection that is in use: the view of clients, and the state afterwards."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from uuid import uuid4

import pytest
from bson import MaxKey, MinKey
from bson.binary import Binary
from bson.int64 import Int64
from pymongo.errors import OperationFailure
from pymongo.read_concern import ReadConcern

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.raw_client import raw_client
from tests.integration.sharded import Document, Documents, assert_tiled, catalog_entry, chunks
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster
from tests.resharding.resharded import (
    LAST,
    check_nothing_left,
    resharding,
    running_writers,
    split_parts,
)
from tests.server_parameters import server_parameter

_UNRECOVERABLE = r"^Recipient shard shard\d reached an unrecoverable error :: caused by :: "
_UNEQUAL = "Another reshard collection with different arguments is already running for the same namespace"


@pytest.fixture
def mongods(cluster: RunningCluster) -> Iterator[list[Client]]:
    with cluster.direct("shard0.0.mongod") as lower, cluster.direct("shard1.0.mongod") as upper:
        yield [lower, upper]


def documents(count: int) -> list[Document]:
    return [{"_id": n, "key": n % LAST, "other": n * 7 % LAST, "text": "x" * 50} for n in range(count)]


def test_all_documents_are_where_the_new_key_says(collection: Documents, mongods: list[Client]) -> None:
    client, namespace = collection.database.client, collection.full_name
    before = documents(3_000)
    collection.insert_many(before)
    former = catalog_entry(client, namespace)
    assert former is not None
    client.admin.command("reshardCollection", namespace, key={"other": 1}, _presetReshardedChunks=split_parts("other"))
    entry = catalog_entry(client, namespace)
    assert entry is not None
    assert entry["key"] == {"other": 1}
    assert entry["uuid"] != former["uuid"]
    assert_tiled(chunks(client, namespace))
    assert sorted(collection.find(), key=lambda each: each["_id"]) == before
    name, db = collection.name, collection.database.name
    assert mongods[0][db][name].count_documents({"other": {"$lt": LAST // 2}}) == 0
    assert mongods[1][db][name].count_documents({"other": {"$gte": LAST // 2}}) == 0
    check_nothing_left(client, mongods, namespace)


def test_hidden_indexes_stay_hidden(collection: Documents, mongods: list[Client]) -> None:
    client = collection.database.client
    collection.create_index("text", hidden=True)
    collection.insert_many(documents(10))
    chunks = split_parts("other")
    client.admin.command("reshardCollection", collection.full_name, key={"other": 1}, _presetReshardedChunks=chunks)
    for mongod in mongods:
        indexes = mongod[collection.database.name][collection.name].list_indexes()
        hidden = {index["name"]: index.get("hidden", False) for index in indexes}
        assert hidden == {"_id_": False, "key_1": False, "other_1": False, "text_1": True}


def test_writers_lose_nothing(collection: Documents, mongods: list[Client]) -> None:
    client, namespace = collection.database.client, collection.full_name
    with running_writers(collection) as writers:
        writers.wait_for_progress(200)
        client.admin.command(
            "reshardCollection", namespace, key={"other": 1}, _presetReshardedChunks=split_parts("other")
        )
        writers.wait_for_progress(100)
    assert writers.errors == []
    writers.check(list(collection.find()))
    check_nothing_left(client, mongods, namespace)


@pytest.fixture
def impatient(cluster: RunningCluster) -> Iterator[None]:
    """A resharding waits in its critical section for two seconds."""
    with (
        cluster.direct("config.0.configd") as config,
        server_parameter(config, "reshardingCriticalSectionTimeoutMillis", 2_000),
    ):
        yield


@pytest.fixture
def upper(cluster: RunningCluster) -> Iterator[Client]:
    with cluster.direct("shard1.0.shardd") as daemon:
        yield daemon


def test_an_operation_in_progress(collection: Documents, mongods: list[Client], upper: Client) -> None:
    """Some operations are refused during a resharding, it is shown, and an abort leaves nothing behind."""
    client, namespace = collection.database.client, collection.full_name
    before = documents(500)
    collection.insert_many(before)
    former = catalog_entry(client, namespace)
    with fail_point(upper, "reshardingPauseRecipientDuringOplogApplication") as point:
        with resharding(client, namespace, {"other": 1}, _presetReshardedChunks=split_parts("other")) as running:
            point.wait_entered()
            for refused, codes in (
                (partial(collection.create_index, "text"), {338}),
                (partial(client.admin.command, "moveChunk", namespace, find={"key": 0}, to="shard1"), {117}),
            ):
                with pytest.raises(OperationFailure) as caught:
                    refused()
                assert caught.value.code in codes
            for unequal in ({"key": {"text": 1}}, {"key": {"other": 1}}, {"key": {"other": 1}, "numInitialChunks": 2}):
                with pytest.raises(OperationFailure) as caught:
                    client.admin.command("reshardCollection", namespace, **unequal)
                assert (caught.value.code, (caught.value.details or {})["errmsg"]) == (117, _UNEQUAL)
            shown = client.admin.command({"currentOp": 1, "originatingCommand.reshardCollection": namespace})["inprog"]
            assert {each["desc"].partition("Service")[0] for each in shown} == {
                "ReshardingDonor",
                "ReshardingRecipient",
            }
            client.admin.command("abortReshardCollection", namespace)
            error = running.wait()
        assert isinstance(error, OperationFailure)
        assert (error.code, error.details["errmsg"] if error.details else "") == (341, "aborted")
    entry = catalog_entry(client, namespace)
    assert former is not None
    assert entry is not None
    assert (entry["key"], entry["uuid"]) == (former["key"], former["uuid"])
    assert sorted(collection.find(), key=lambda each: each["_id"]) == before
    check_nothing_left(client, mongods, namespace)
    collection.create_index("text")
    client.admin.command("moveChunk", namespace, find={"key": 0}, to="shard1")


def request_of_router(collection: Documents) -> Document:
    """Return the command of a router to the primary shard that gives the collection the key ``{other: 1}``."""
    database = collection.database.client.config.databases.find_one({"_id": collection.database.name})
    assert database is not None
    return {
        "_shardsvrReshardCollection": collection.full_name,
        "key": {"other": 1},
        "_presetReshardedChunks": split_parts("other"),
        "reshardingUUID": Binary.from_uuid(uuid4()),
        "databaseVersion": database["version"],
    }


def test_what_was_aborted_does_not_begin_again_when_its_request_is_repeated(
    cluster: RunningCluster, collection: Documents, upper: Client
) -> None:
    """A router repeats a request whose answer was lost, and then the primary shard's coordinator may be gone."""
    client, namespace = collection.database.client, collection.full_name
    request = request_of_router(collection)
    with cluster.direct("shard0.0.shardd") as primary, ThreadPoolExecutor(1) as pool:
        with fail_point(upper, "reshardingPauseRecipientDuringOplogApplication") as point:
            first = pool.submit(primary.admin.command, request)
            point.wait_entered()
            client.admin.command("abortReshardCollection", namespace)
            aborted = first.exception()
        with pytest.raises(OperationFailure) as repeated:
            primary.admin.command(request)
    assert isinstance(aborted, OperationFailure)
    assert aborted.code == repeated.value.code == 341
    entry = catalog_entry(client, namespace)
    assert entry is not None
    assert entry["key"] == {"key": 1}


def test_what_was_made_is_not_made_again_when_its_request_is_repeated(
    cluster: RunningCluster, collection: Documents
) -> None:
    """The collection may have got its former key again since."""
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(100))
    request = request_of_router(collection)
    with cluster.direct("shard0.0.shardd") as primary:
        primary.admin.command(request)
        client.admin.command("reshardCollection", namespace, key={"key": 1}, numInitialChunks=1)
        assert primary.admin.command(request)["ok"]
    entry = catalog_entry(client, namespace)
    assert entry is not None
    assert entry["key"] == {"key": 1}


@pytest.mark.usefixtures("impatient")
def test_open_transactions_end_it(collection: Documents, mongods: list[Client], upper: Client) -> None:
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(10))
    with (
        fail_point(upper, "reshardingPauseRecipientDuringOplogApplication") as point,
        resharding(client, namespace, {"other": 1}) as running,
    ):
        point.wait_entered()
        with client.start_session() as session, session.start_transaction():
            collection.update_one({"key": 1}, {"$set": {"text": "y"}}, session=session)
            point.turn_off()
            error = running.wait()
    assert isinstance(error, OperationFailure)
    assert error.code == 342
    assert collection.count_documents({"text": "y"}) == 1
    check_nothing_left(client, mongods, namespace)


def test_a_transaction_commits_while_writes_are_blocked(
    collection: Documents, mongods: list[Client], upper: Client
) -> None:
    """The critical section waits for transactions, and these for nothing."""
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(10))
    chunks_of_other = split_parts("other")
    with (
        fail_point(upper, "reshardingPauseRecipientDuringOplogApplication") as point,
        resharding(client, namespace, {"other": 1}, _presetReshardedChunks=chunks_of_other) as running,
    ):
        point.wait_entered()
        with client.start_session() as session, session.start_transaction():
            collection.update_one({"key": 1}, {"$set": {"text": "y"}}, session=session)
            collection.insert_one({"_id": "new", "key": LAST - 1, "other": 1}, session=session)
            point.turn_off()
            blocked = {"ns": namespace, "state": "blocking-writes"}
            eventually(lambda: client.config.reshardingOperations.find_one(blocked), what="writes are blocked")
            collection.update_one({"key": 2}, {"$set": {"text": "y"}}, session=session)
        assert running.wait() is None
    assert collection.distinct("_id", {"$or": [{"text": "y"}, {"_id": "new"}]}) == [1, 2, "new"]
    assert collection.count_documents({}) == 11
    check_nothing_left(client, mongods, namespace)


def test_an_index_that_waits_for_a_transaction(collection: Documents, mongods: list[Client]) -> None:
    """Its creation was admitted before, and mongod begins it when the recipients could have read the indexes."""
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(10))
    with ThreadPoolExecutor() as pool, client.start_session() as session:
        with session.start_transaction():
            for key in (0, LAST - 1):
                collection.insert_one({"key": key, "other": key}, session=session)
            created = pool.submit(collection.create_index, "text")
            wait_under_way(mongods, "createIndexes")
            resharded = pool.submit(client.admin.command, "reshardCollection", namespace, key={"other": 1})
            eventually(
                lambda: client.config.reshardingOperations.find_one({"state": "preparing-to-donate"}),
                within=30,
                what="donors are being asked",
            )
            assert not resharded.done()
        assert created.result() == "text_1"
        resharded.result()
    assert {"key_1", "other_1", "text_1"} <= collection.index_information().keys()


def wait_under_way(mongods: list[Client], command: str) -> None:
    """Wait until every mongod executes a command."""

    def are_busy() -> bool:
        operations = [mongod.admin.aggregate([{"$currentOp": {}}]) for mongod in mongods]
        return all(any(command in each.get("command", {}) for each in some) for some in operations)

    eventually(are_busy, within=30, what=f"{command} is under way")


def test_a_snapshot_from_before_it_is_not_read(collection: Documents, upper: Client) -> None:
    """At that time the assembled collection was not complete, and not under this name."""
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(10))
    beside = collection.database.beside
    beside.insert_one({})
    with (
        fail_point(upper, "reshardingPauseRecipientDuringOplogApplication") as point,
        resharding(client, namespace, {"other": 1}, _presetReshardedChunks=split_parts("other")) as running,
        client.start_session() as session,
    ):
        # A transaction that is open earlier keeps the shards from making the new collection until it expires.
        point.wait_entered()
        session.start_transaction(read_concern=ReadConcern("snapshot"))
        assert beside.find_one({}, session=session)
        point.turn_off()
        assert running.wait() is None
        with pytest.raises(OperationFailure) as caught:
            collection.count_documents({}, session=session)
        # The router finds out if the placement that it knows begins later, a shard daemon if it is the one from before,
        # and the mongod if it is the new one: that has been in the catalog since the collection was being assembled.
        found_out = (ErrorCode.StaleChunkHistory, ErrorCode.StaleConfig, ErrorCode.SnapshotUnavailable)
        assert caught.value.code in found_out
        assert caught.value.has_error_label("TransientTransactionError")
        session.abort_transaction()
    assert collection.count_documents({}) == 10


def test_two_documents_with_one_id(collection: Documents, mongods: list[Client]) -> None:
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many([{"_id": 1, "key": 0, "other": 0}, {"_id": 1, "key": LAST - 1, "other": 1}])
    with pytest.raises(OperationFailure, match=_UNRECOVERABLE) as caught:
        client.admin.command("reshardCollection", namespace, key={"other": 1}, numInitialChunks=1)
    assert caught.value.code == 5356800
    assert collection.count_documents({}) == 2
    check_nothing_left(client, mongods, namespace)
    chunks_of_other = [
        {"recipientShardId": "shard0", "min": {"other": MinKey()}, "max": {"other": 1}},
        {"recipientShardId": "shard1", "min": {"other": 1}, "max": {"other": MaxKey()}},
    ]
    client.admin.command("reshardCollection", namespace, key={"other": 1}, _presetReshardedChunks=chunks_of_other)
    assert collection.count_documents({"_id": 1}) == 2


def test_a_retried_write_is_not_executed_again(collection: Documents, cluster: RunningCluster) -> None:
    """Through neither router, one of which has not refreshed since the resharding."""
    client, namespace, db = collection.database.client, collection.full_name, collection.database.name
    collection.insert_many(documents(10))
    update = {"q": {"key": 1, "other": 7}, "u": {"$inc": {"times": 1}}}
    document = {"_id": "new", "key": LAST - 1, "other": 1}
    commands = [
        {**command, "lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(7)}
        for command in (
            {"update": collection.name, "updates": [update]},
            {"insert": collection.name, "documents": [document]},
        )
    ]
    with raw_client(cluster.address("router.0")) as first, raw_client(cluster.address("router.1")) as second:
        for command in commands:
            assert first.command(command, db=db)["n"] == 1
        client.admin.command(
            "reshardCollection", namespace, key={"other": 1}, _presetReshardedChunks=split_parts("other")
        )
        for router in (first, second):
            for command in commands:
                assert router.command(command, db=db)["n"] == 1
    assert collection.find_one({"key": 1, "other": 7}, {"times": 1}) == {"_id": 1, "times": 1}
    assert collection.count_documents({"_id": "new"}) == 1


def test_chunks_by_sample_and_zone(collection: Documents) -> None:
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(1_000))
    client.admin.command("addShardToZone", "shard1", zone="east")
    try:
        zone = {"zone": "east", "min": {"other": 0}, "max": {"other": 300}}
        client.admin.command("reshardCollection", namespace, key={"other": 1}, numInitialChunks=6, zones=[zone])
        found = chunks(client, namespace)
        assert len(found) == 6
        assert_tiled(found)
        assert {each["shard"] for each in found if each["min"] == {"other": 0}} == {"shard1"}
        (tag,) = client.config.tags.find({"ns": namespace})
        assert (tag["tag"], tag["min"], tag["max"]) == ("east", {"other": 0}, {"other": 300})
        with pytest.raises(OperationFailure) as caught:
            client.admin.command("reshardCollection", namespace, key={"key": 1})
        assert (caught.value.code, str(caught.value).partition(",")[0]) == (2, "Must specify value for zones field")
    finally:
        client.admin.command("reshardCollection", namespace, key={"_id": "hashed"}, zones=[])
        client.admin.command("removeShardFromZone", "shard1", zone="east")
    assert client.config.tags.count_documents({"ns": namespace}) == 0
    assert collection.count_documents({}) == 1_000


@pytest.mark.parametrize(("count", "size"), [(100, 10), (4_500, 4_000)], ids=["small keys", "more than a reply holds"])
def test_the_sample_leaves_no_cursor_open(collection: Documents, mongods: list[Client], count: int, size: int) -> None:
    """It would keep the collection's ranges from being deleted until it times out."""
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many({"key": 0, "other": f"{n:0{size}}"} for n in range(count))
    client.admin.command("reshardCollection", namespace, key={"other": 1}, numInitialChunks=count // 10)
    for mongod in mongods:
        idle = mongod.admin.aggregate([{"$currentOp": {"idleCursors": True}}, {"$match": {"type": "idleCursor"}}])
        assert [each["cursor"] for each in idle if each["ns"] == namespace] == []


def test_change_streams_go_on(collection: Documents) -> None:
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(100))
    with collection.watch() as stream, collection.database.watch() as of_database:
        collection.insert_one({"_id": "before", "key": 1, "other": LAST - 1})
        for key in ({"other": 1}, {"key": 1}):
            client.admin.command("reshardCollection", namespace, key=key, numInitialChunks=4)
            collection.insert_one({"_id": f"by {next(iter(key))}", "key": LAST - 1, "other": 1})
        for each in (stream, of_database):
            seen = [each.next() for _ in range(3)]
            assert [(event["operationType"], event["documentKey"]["_id"]) for event in seen] == [
                ("insert", "before"),
                ("insert", "by other"),
                ("insert", "by key"),
            ]
            assert each.try_next() is None


def test_a_router_that_knows_nothing_of_it(collection: Documents, cluster: RunningCluster) -> None:
    client, namespace = collection.database.client, collection.full_name
    with cluster.direct("router.1") as stale:
        other = stale[collection.database.name][collection.name]
        other.insert_many(documents(100))
        assert other.count_documents({"key": {"$lt": 50}}) == 50
        for number, key in enumerate(({"other": 1}, {"key": 1})):
            client.admin.command("reshardCollection", namespace, key=key, numInitialChunks=4)
            assert other.find_one({"key": 7})["_id"] == 7  # type: ignore[index]
            other.insert_one({"_id": f"new{number}", "key": 5_000, "other": 5_000})
            assert other.count_documents({"_id": {"$in": ["new0", "new1"]}}) == number + 1
        assert collection.count_documents({}) == 102


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        ({"key": {"other": -1}}, 2),
        ({"key": {}}, 2),
        ({"key": {"other": 1}, "unique": True}, 2),
        ({"key": {"other": 1}, "numInitialChunks": 500}, 4952606),
        ({"key": {"other": 1}, "zones": [{"zone": "nowhere", "min": {"other": 0}, "max": {"other": 1}}]}, 4952607),
        ({"key": {"other": 1}, "_presetReshardedChunks": []}, 2),
    ],
)
def test_what_is_refused(collection: Documents, mongods: list[Client], arguments: Document, code: int) -> None:
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(20))
    with pytest.raises(OperationFailure) as caught:
        client.admin.command({"reshardCollection": namespace, **arguments})
    assert caught.value.code == code
    check_nothing_left(client, mongods, namespace)


def test_what_there_is_nothing_to_do_for(collection: Documents) -> None:
    client, namespace = collection.database.client, collection.full_name
    former = catalog_entry(client, namespace)
    client.admin.command("reshardCollection", namespace, key={"key": 1})
    assert catalog_entry(client, namespace) == former
    client.admin.command("cleanupReshardCollection", namespace)
    for name in ("abortReshardCollection", "commitReshardCollection"):
        with pytest.raises(OperationFailure) as caught:
            client.admin.command(name, namespace)
        assert caught.value.code == 339
    collection.database.create_collection("unsharded")
    with pytest.raises(OperationFailure) as caught:
        client.admin.command("reshardCollection", f"{collection.database.name}.unsharded", key={"key": 1})
    assert caught.value.code == 118


def test_equal_requests_through_two_routers_are_one_operation(
    collection: Documents, cluster: RunningCluster, mongods: list[Client], upper: Client
) -> None:
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(100))
    options = {"_presetReshardedChunks": split_parts("other")}
    with (
        cluster.direct("router.1") as second,
        fail_point(upper, "reshardingPauseRecipientBeforeCloning") as point,
        resharding(client, namespace, {"other": 1}, **options) as first,
    ):
        point.wait_entered()
        with resharding(second, namespace, {"other": 1}, **options) as joined:
            assert client.config.reshardingOperations.count_documents({}) == 1
            point.turn_off()
            assert joined.wait() is None
        assert first.wait() is None
    changes = {"what": "resharding.coordinator.transition", "ns": namespace, "details.newState": "committing"}
    assert client.config.changelog.count_documents(changes) == 1
    assert collection.count_documents({}) == 100
    check_nothing_left(client, mongods, namespace)


def test_documents_that_together_are_more_than_a_command_may_have(collection: Documents, mongods: list[Client]) -> None:
    client, namespace = collection.database.client, collection.full_name
    small = [{"_id": n, "key": n, "other": 1, "text": "x" * 900} for n in range(400)]
    large = {"_id": 400, "key": 400, "other": 1, "text": "x" * ((16 << 20) - 400_000)}
    collection.insert_many([*small, large])
    client.admin.command("reshardCollection", namespace, key={"other": 1, "_id": 1}, numInitialChunks=1)
    assert collection.count_documents({}) == 401
    check_nothing_left(client, mongods, namespace)


def test_a_plan_with_a_shard_that_does_not_exist(collection: Documents, mongods: list[Client]) -> None:
    """Like a shard that is removed while the chunks are planned."""
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(10))
    chunk = {"recipientShardId": "nonesuch", "min": {"other": MinKey()}, "max": {"other": MaxKey()}}
    with pytest.raises(OperationFailure) as failure:
        client.admin.command("reshardCollection", namespace, key={"other": 1}, _presetReshardedChunks=[chunk])
    assert failure.value.code == ErrorCode.ShardNotFound
    check_nothing_left(client, mongods, namespace)
    client.admin.command("reshardCollection", namespace, key={"other": 1}, numInitialChunks=1)
    assert collection.count_documents({}) == 10


@pytest.mark.parametrize("side", ["min", "max"])
def test_zones_with_arrays_as_bounds(collection: Documents, mongods: list[Client], side: str) -> None:
    client, namespace = collection.database.client, collection.full_name
    client.admin.command("addShardToZone", "shard0", zone="listed")
    try:
        zone = {"zone": "listed", "min": {"text": MinKey()}, "max": {"text": MaxKey()}, side: {"text": [1]}}
        with pytest.raises(OperationFailure, match="must not have arrays") as failure:
            client.admin.command("reshardCollection", namespace, key={"text": 1}, zones=[zone])
        assert failure.value.code == ErrorCode.BadValue
        check_nothing_left(client, mongods, namespace)
    finally:
        client.admin.command("removeShardFromZone", "shard0", zone="listed")


def test_zones_of_several_megabytes(collection: Documents, mongods: list[Client]) -> None:
    """The last transaction has them twice."""
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many(documents(10))
    client.admin.command("addShardToZone", "shard0", zone="wide")
    try:
        bounds = [{"text": f"{n:04}" + "x" * 4_046} for n in range(851)]
        zones = [{"zone": "wide", "min": low, "max": high} for low, high in pairwise(bounds)]
        client.admin.command("reshardCollection", namespace, key={"text": 1}, zones=zones)
        assert collection.count_documents({}) == 10
        assert len(chunks(client, namespace)) == 852
        check_nothing_left(client, mongods, namespace)
    finally:
        collection.drop()
        client.admin.command("removeShardFromZone", "shard0", zone="wide")


def test_a_key_below_the_id(collection: Documents) -> None:
    client, namespace = collection.database.client, collection.full_name
    collection.insert_many({"_id": {"x": number}, "key": number} for number in range(100))
    client.admin.command("reshardCollection", namespace, key={"_id.x": 1}, numInitialChunks=4)
    assert len(chunks(client, namespace)) == 4
    assert collection.count_documents({}) == 100
