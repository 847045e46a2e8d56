"""``movePrimary`` through two routers. One of them is not notified of the move."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from bson import Int64
from pymongo.database import Database
from pymongo.errors import OperationFailure, PyMongoError

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, shard_by_range
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster, client_of

DOCUMENTS = 3_000
MOVE_SECONDS_MAX = 60.0
UPPER_KEY = SPLIT_AT + 1


def move(client: Client, database: Database[Document], to: str = UPPER) -> Document:
    return client.admin.command("movePrimary", database.name, to=to)


def placement(client: Client, database: Database[Document]) -> tuple[str, int]:
    entry = client.config.databases.find_one({"_id": database.name})
    assert entry is not None
    return entry["primary"], entry["version"]["lastMod"]


def names_on(mongod: Client, database: Database[Document]) -> set[str]:
    return set(mongod[database.name].list_collection_names())


@contextmanager
def moving(client: Client, database: Database[Document], to: str = UPPER) -> Iterator[list[Any]]:
    """Move the database during the block; at its end the list has the reply or the error."""
    outcome: list[Any] = []

    def run() -> None:
        try:
            outcome.append(move(client, database, to))
        except PyMongoError as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield outcome
    thread.join(MOVE_SECONDS_MAX)
    assert not thread.is_alive(), "a move does not end"


@pytest.fixture
def lower_daemon(cluster: RunningCluster) -> Iterator[Client]:
    with cluster.direct(f"{LOWER}.0.shardd") as client:
        yield client


def described(database: Database[Document]) -> dict[str, Any]:
    """The collections of a database: kind, options, indexes and documents."""
    found = {}
    for entry in database.list_collections():
        name = entry["name"]
        if name == "system.views":
            continue
        indexes = [] if entry["type"] == "view" else sorted(map(repr, database[name].list_indexes()))
        documents = list(database[name].find())
        if not entry["options"].get("capped"):
            documents.sort(key=repr)
        found[name] = (entry["type"], entry["options"], indexes, documents)
    return found


def test_all_kinds_of_collections_move(
    client: Client, other_client: Client, database: Database[Document], lower_mongod: Client, upper_mongod: Client
) -> None:
    database.plain.insert_many([{"_id": n, "n": n % 7, "text": "x" * 100} for n in range(DOCUMENTS)])
    database.plain.create_index([("n", 1), ("text", -1)], name="both")
    database.plain.create_index("unique", unique=True, sparse=True)
    database.create_collection("french", collation={"locale": "fr"}, validator={"a": {"$gt": 0}})
    database.french.create_index("a", collation={"locale": "simple"})
    database.french.insert_many([{"_id": each, "a": 1} for each in ("é", "e", "f")])
    database.create_collection("capped", capped=True, size=100_000, max=50)
    database.capped.insert_many([{"n": -n} for n in range(60)])
    database.create_collection("clustered", clusteredIndex={"key": {"_id": 1}, "unique": True})
    database.clustered.insert_many([{"_id": n} for n in range(10)])
    database.create_collection("expiring")
    database.expiring.create_index("at", expireAfterSeconds=3_600_000_000 // 1_000)
    database.expiring.insert_one({"at": datetime.now(UTC)})
    database.create_collection("series", timeseries={"timeField": "t", "metaField": "m"})
    database.series.insert_many(
        [{"t": datetime(2024, 1, 1, 0, 0, n, tzinfo=UTC), "m": n % 2, "n": n} for n in range(9)]
    )
    database.create_collection("empty")
    database.command("create", "view", viewOn="plain", pipeline=[{"$match": {"n": 3}}])
    database["system.js"].insert_one({"_id": "one", "value": 1})
    database["system.users"].insert_one({"_id": "of a restored dump"})
    sharded = shard_by_range(database)
    sharded.insert_many([{"key": key} for key in range(0, 1_000, 100)])
    before = described(database)
    other = other_client[database.name]
    assert other.plain.count_documents({}) == DOCUMENTS

    assert move(client, database)["ok"] == 1.0

    assert placement(client, database) == (UPPER, 2)
    assert described(database) == before
    assert described(other) == before
    assert other.view.count_documents({}) == database.plain.count_documents({"n": 3})
    assert names_on(lower_mongod, database) == {"ranged"}
    assert "ranged" in names_on(upper_mongod, database)
    assert lower_mongod[database.name].ranged.count_documents({}) == 5
    changes = client.config.changelog.find({"what": {"$regex": "^movePrimary"}, "ns": database.name}).sort("time", 1)
    details = {"database": database.name, "from": LOWER, "to": UPPER}
    logged = [(each["what"], {name: each["details"][name] for name in details}) for each in changes]
    assert logged == [("movePrimary.start", details), ("movePrimary.commit", details)]

    database.create_collection("later", timeseries={"timeField": "t"})
    database.drop_collection("view")
    database.plain.drop_index("unique_1")
    client.admin.command("shardCollection", f"{database.name}.plain", key={"_id": 1})
    assert move(client, database, LOWER)["ok"] == 1.0
    assert placement(client, database) == (LOWER, 3)
    assert database.plain.count_documents({}) == DOCUMENTS
    assert names_on(upper_mongod, database) == {"plain", "ranged"}


def test_the_former_primary_shard_has_no_views(
    client: Client, database: Database[Document], lower_mongod: Client, upper_mongod: Client
) -> None:
    """A mongod keeps ``system.views`` when the last view is dropped; buckets may stay, as chunks of theirs do."""
    database.create_collection("view", viewOn="plain")
    database.drop_collection("view")
    assert names_on(lower_mongod, database) == {"system.views"}
    for to, former in ((UPPER, lower_mongod), (LOWER, upper_mongod)):
        assert move(client, database, to)["ok"] == 1.0
        assert names_on(former, database) == set()

    series, buckets = f"{database.name}.series", "system.buckets.series"
    options = {"timeField": "at", "metaField": "sensor"}
    client.admin.command("shardCollection", series, key={"sensor": 1}, timeseries=options)
    client.admin.command("split", f"{database.name}.{buckets}", middle={"meta": 5})
    client.admin.command("moveChunk", f"{database.name}.{buckets}", find={"meta": 5}, to=UPPER)
    database.series.insert_many([{"at": datetime(2024, 1, 1, tzinfo=UTC), "sensor": n} for n in range(10)])
    for to, former in ((UPPER, lower_mongod), (LOWER, upper_mongod)):
        assert move(client, database, to)["ok"] == 1.0
        assert names_on(former, database) - {"system.views"} == {buckets}
        assert list(former[database.name]["system.views"].find()) == []
        assert database.series.count_documents({}) == 10
        assert database.command("checkMetadataConsistency", 1)["cursor"]["firstBatch"] == []


def test_no_acknowledged_write_is_lost_or_doubled(
    client: Client, other_client: Client, database: Database[Document], lower_mongod: Client, upper_mongod: Client
) -> None:
    """Retryable inserts and increments through both routers, while the database moves back and forth."""
    database.counters.insert_many([{"_id": n, "count": 0, "padding": "x" * 500} for n in range(DOCUMENTS)])
    is_over = threading.Event()
    inserted: list[list[int]] = [[], []]
    counted = [0, 0]
    failures: list[PyMongoError] = []

    def write(number: int, target: Database[Document]) -> None:
        at = number
        while not is_over.is_set():
            try:
                target.new.insert_one({"_id": at})
                inserted[number].append(at)
                target.counters.update_one({"_id": at % DOCUMENTS}, {"$inc": {"count": 1}})
                counted[number] += 1
                target.counters.find_one_and_delete({"_id": -1 - at})
            except PyMongoError as error:
                failures.append(error)
            at += 2

    targets = (database, other_client[database.name])
    threads = [threading.Thread(target=write, args=pair, daemon=True) for pair in enumerate(targets)]
    for thread in threads:
        thread.start()
    try:
        for to in (UPPER, LOWER, UPPER):
            before = sum(map(len, inserted))
            eventually(lambda before=before: sum(map(len, inserted)) > before + 40, what="writes go on")  # type: ignore[misc]
            assert move(client, database, to)["ok"] == 1.0
    finally:
        is_over.set()
        for thread in threads:
            thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert failures == []
    assert {each["_id"] for each in database.new.find()} == {*inserted[0], *inserted[1]}
    assert sum(each["count"] for each in database.counters.find()) == sum(counted)
    assert names_on(lower_mongod, database) == set()
    assert upper_mongod[database.name].counters.count_documents({}) == DOCUMENTS


def test_a_retried_write_is_executed_once(client: Client, database: Database[Document]) -> None:
    database.c.insert_one({"_id": 0, "n": 0})
    assert client.address is not None
    # A client of its own, as its session is not to be used for later writes.
    with client_of("{}:{}".format(*client.address)) as own, own.start_session() as session:
        update = {"update": "c", "updates": [{"q": {"_id": 0}, "u": {"$inc": {"n": 1}}}], "txnNumber": Int64(1_000)}
        first = own[database.name].command(update, session=session)
        move(client, database)
        again = own[database.name].command(update, session=session)
    assert (first["n"], first["nModified"]) == (again["n"], again["nModified"]) == (1, 1)
    assert database.c.find_one() == {"_id": 0, "n": 1}


def refused(run: Callable[[], object]) -> tuple[int | None, str]:
    with pytest.raises(OperationFailure) as caught:
        run()
    return caught.value.code, str((caught.value.details or {}).get("errmsg"))


def test_what_is_refused(client: Client, database: Database[Document], upper_mongod: Client) -> None:
    database.c.insert_one({})
    assert refused(lambda: move(client, database, "nowhere"))[0] == ErrorCode.ShardNotFound
    assert refused(lambda: move(client, database, ""))[0] == ErrorCode.InvalidOptions
    assert refused(lambda: move(client, client.admin))[0] == ErrorCode.InvalidOptions
    assert refused(lambda: move(client, client.config))[0] == ErrorCode.InvalidOptions
    assert refused(lambda: move(client, client["never_created_database"]))[0] == ErrorCode.NamespaceNotFound
    assert move(client, database, LOWER)["ok"] == 1.0
    assert placement(client, database) == (LOWER, 1)


def test_a_move_back_waits_until_the_former_primary_shard_has_cleaned_up(
    client: Client, other_client: Client, database: Database[Document], lower_daemon: Client, lower_mongod: Client
) -> None:
    database.plain.insert_many({"_id": n} for n in range(10))
    with fail_point(lower_daemon, "movePrimaryHangBeforeDropping") as dropping, moving(client, database) as there:
        dropping.wait_entered()
        assert names_on(lower_mongod, database) == {"plain"}
        with moving(other_client, database, to=LOWER) as back:
            database.plain.insert_one({"_id": 10})
            assert not back
            dropping.turn_off()
    assert [reply["ok"] for reply in (*there, *back)] == [1.0, 1.0]
    assert placement(client, database) == (LOWER, 3)
    assert database.plain.count_documents({}) == 11


def test_a_collection_on_the_recipient_is_not_touched(
    client: Client, database: Database[Document], upper_mongod: Client
) -> None:
    database.a.insert_one({})
    database.b.insert_one({})
    upper_mongod[database.name].b.insert_one({"_id": "stray"})
    code, message = refused(lambda: move(client, database))
    assert code == ErrorCode.NamespaceExists
    assert message == f"unsharded collection with same namespace {database.name}.b already exists."
    assert names_on(upper_mongod, database) == {"b"}
    assert upper_mongod[database.name].b.find_one() == {"_id": "stray"}
    assert placement(client, database) == (LOWER, 1)
    upper_mongod[database.name].drop_collection("b")
    assert move(client, database)["ok"] == 1.0
    assert {"a", "b"} <= set(database.list_collection_names())


def test_changes_to_collections_meanwhile(
    client: Client, other_client: Client, database: Database[Document], lower_daemon: Client
) -> None:
    """Implicitly created collections are moved too; explicit changes are refused, or wait for the end of the move."""
    database.c.insert_many([{"_id": n} for n in range(100)])
    database.target.insert_one({"_id": "old"})
    other = other_client[database.name]
    with fail_point(lower_daemon, "movePrimaryHangBeforeCriticalSection") as point:
        with moving(client, database) as outcome:
            point.wait_entered()
            assert refused(lambda: other.create_collection("explicit"))[0] == ErrorCode.MovePrimaryInProgress
            code, message = refused(lambda: other.c.create_index("x"))
            assert code == ErrorCode.MovePrimaryInProgress
            assert message == f"movePrimary is in progress for namespace {database.name}.c"
            other.implicit.insert_one({"_id": 1})
            other.c.aggregate([{"$match": {"_id": {"$lt": 3}}}, {"$out": "target"}])
            other.c.delete_many({"_id": {"$lt": 50}})
            with pytest.raises(OperationFailure) as conflict:
                client.admin.command("movePrimary", database.name, to=UPPER, maxTimeMS=200)
            assert conflict.value.code == ErrorCode.MaxTimeMSExpired
            dropping = threading.Thread(target=other.drop_collection, args=("implicit",), daemon=True)
            dropping.start()
            point.turn_off()
        assert outcome[0] == {**outcome[0], "ok": 1.0}
        dropping.join(60)
        assert not dropping.is_alive()
    assert placement(client, database)[0] == UPPER
    assert sorted(database.list_collection_names()) == ["c", "target"]
    assert sorted(each["_id"] for each in other.target.find()) == [0, 1, 2]
    assert other.c.count_documents({}) == 50


def test_an_open_transaction_ends_the_move(
    client: Client, database: Database[Document], lower_mongod: Client, upper_mongod: Client
) -> None:
    database.c.insert_one({"_id": 0})
    with client.start_session() as session, session.start_transaction():
        database.c.update_one({"_id": 0}, {"$set": {"n": 1}}, session=session)
        assert refused(lambda: move(client, database))[0] == ErrorCode.LockTimeout
        database.c.update_one({"_id": 0}, {"$inc": {"n": 1}}, session=session)
    assert names_on(upper_mongod, database) == set()
    assert move(client, database)["ok"] == 1.0
    assert database.c.find_one() == {"_id": 0, "n": 2}
    assert names_on(lower_mongod, database) == set()


def test_change_streams_do_not_show_the_copy(client: Client, database: Database[Document]) -> None:
    database.c.insert_one({"_id": 0})
    with database.watch(show_expanded_events=True) as stream, database.c.watch() as narrow:
        database.c.insert_one({"_id": 1})
        for to in (UPPER, LOWER):
            move(client, database, to)
            database.c.insert_one({"_id": to})
        database.c.delete_one({"_id": 0})
        for each in (stream, narrow):
            seen = [each.next() for _ in range(4)]
            assert [event["operationType"] for event in seen] == ["insert", "insert", "insert", "delete"]
            assert [event["documentKey"]["_id"] for event in seen] == [1, UPPER, LOWER, 0]


def test_snapshots_from_before_the_move_are_refused(
    client: Client, database: Database[Document], lower_daemon: Client
) -> None:
    """On the new primary shard they would show an incomplete copy."""
    database.c.insert_many([{"_id": n} for n in range(10)])
    ranged = shard_by_range(database)
    ranged.insert_one({"key": UPPER_KEY})
    with client.start_session() as session:
        with fail_point(lower_daemon, "movePrimaryHangBeforeCriticalSection") as point:
            with moving(client, database) as outcome:
                point.wait_entered()
                session.start_transaction()
                assert ranged.count_documents({"key": UPPER_KEY}, session=session) == 1
                before = client.admin.command("ping")["operationTime"]
                database.c.insert_one({"_id": "late"})
                point.turn_off()
            assert outcome[0] == {**outcome[0], "ok": 1.0}
        with pytest.raises(OperationFailure) as caught:
            database.c.count_documents({}, session=session)
        assert caught.value.code in {ErrorCode.SnapshotUnavailable, ErrorCode.StaleDbVersion}
        assert caught.value.has_error_label("TransientTransactionError")
        session.abort_transaction()
        with session.start_transaction():
            assert database.c.count_documents({}, session=session) == 11
    with client.start_session() as reader:
        at_that_time = {"level": "snapshot", "atClusterTime": before}
        count = {"aggregate": "c", "pipeline": [{"$count": "n"}], "cursor": {}, "readConcern": at_that_time}
        code, message = refused(lambda: database.command(count, session=reader))
        assert code == ErrorCode.SnapshotUnavailable
        assert message.startswith(f"The database {database.name} has moved to this shard since Timestamp(")
    with client.start_session(snapshot=True) as reader:
        assert database.c.count_documents({}, session=reader) == 11
