"""Transactions of a stock driver over both shards."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Final
from uuid import UUID, uuid4

import pytest
from bson import Int64
from bson.binary import Binary
from pymongo.client_session import ClientSession
from pymongo.database import Database
from pymongo.errors import DuplicateKeyError, OperationFailure
from pymongo.read_concern import ReadConcern
from pymongo.server_api import ServerApi

from shardwright.wire.error_codes import ErrorCode
from tests.fail_points import fail_point
from tests.integration.raw_client import RawClient, raw_client
from tests.integration.routers import connect_to_all, extra_router
from tests.integration.sharded import LOWER, SPLIT_AT, UPPER, Document, Documents
from tests.integration.waiting import eventually
from tests.local_cluster import Client, RunningCluster

LEVELS = ("local", "majority", "snapshot")


@pytest.fixture
def session(client: Client) -> Iterator[ClientSession]:
    """A session of the first router's client."""
    with client.start_session() as started:
        yield started


@pytest.fixture
def filled(placed: Documents) -> Documents:
    """Ten documents on each shard."""
    placed.insert_many([{"_id": key, "key": key} for key in (*range(10), *range(SPLIT_AT, SPLIT_AT + 10))])
    return placed


@pytest.mark.parametrize("level", LEVELS)
def test_writes_of_one_shard_are_seen_when_committed(filled: Documents, session: ClientSession, level: str) -> None:
    with session.start_transaction(read_concern=ReadConcern(level)):
        filled.insert_one({"_id": "new", "key": 1}, session=session)
        filled.update_one({"key": 2}, {"$set": {"x": 1}}, session=session)
        assert filled.count_documents({"key": {"$lt": SPLIT_AT}}, session=session) == 11
        assert filled.find_one({"_id": "new"}) is None
    assert filled.find_one({"_id": "new"}) is not None
    assert filled.find_one({"key": 2}) == {"_id": 2, "key": 2, "x": 1}


@pytest.mark.parametrize("level", LEVELS)
def test_writes_of_two_shards_are_seen_together(filled: Documents, session: ClientSession, level: str) -> None:
    with session.start_transaction(read_concern=ReadConcern(level)):
        filled.insert_many([{"key": 1}, {"key": SPLIT_AT}], session=session)
        assert filled.count_documents({}) == 20
    assert filled.count_documents({}) == 22


def test_aborted_writes_of_two_shards_are_undone(filled: Documents, session: ClientSession) -> None:
    session.start_transaction()
    assert filled.update_many({}, {"$set": {"x": 1}}, session=session).modified_count == 20
    assert filled.count_documents({"x": 1}, session=session) == 20
    session.abort_transaction()
    assert filled.count_documents({"x": 1}) == 0


@pytest.mark.parametrize("level", LEVELS)
def test_reads_of_two_shards(filled: Documents, session: ClientSession, level: str) -> None:
    with session.start_transaction(read_concern=ReadConcern(level)):
        assert len(list(filled.find({}, batch_size=3, session=session))) == 20
        found = [document["key"] for document in filled.find({}, batch_size=3, session=session).sort("key", 1)]
        assert found == sorted(found)
        grouping: list[Document] = [{"$group": {"_id": {"$mod": ["$key", 2]}, "n": {"$sum": 1}}}, {"$sort": {"_id": 1}}]
        assert list(filled.aggregate(grouping, session=session)) == [{"_id": 0, "n": 10}, {"_id": 1, "n": 10}]
        joining: list[Document] = [
            {"$graphLookup": _same_key(filled.name)},
            {"$match": {"found.key": {"$exists": True}}},
        ]
        assert len(list(filled.aggregate(joining, batchSize=3, session=session))) == 20


@pytest.mark.parametrize("is_first", [False, True])
def test_reads_that_no_shard_can_run_alone(filled: Documents, session: ClientSession, *, is_first: bool) -> None:
    database, view = filled.database, f"{filled.name}.view"
    database.create_collection(view, viewOn=filled.name)
    plain = database[f"{filled.name}.plain"]
    plain.insert_one({"_id": 1})
    joins: tuple[Document, ...] = (
        {"$lookup": {"from": view, "localField": "_id", "foreignField": "key", "as": "found"}},
        {"$graphLookup": {**_same_key(view), "startWith": "$_id"}},
    )
    reads: tuple[Callable[[], bool], ...] = (
        lambda: len(list(database[view].find({}, session=session))) == 20,
        lambda: database[view].count_documents({"key": SPLIT_AT}, session=session) == 1,
        *(partial(_finds_one, plain, join, session) for join in joins),
    )
    for read in reads:
        with session.start_transaction():
            if not is_first:
                plain.update_one({"_id": 1}, {"$inc": {"n": 1}}, session=session)
            assert read()
            assert read()
            filled.update_many({}, {"$inc": {"n": 1}}, session=session)
    assert filled.count_documents({"n": len(reads)}) == 20


@pytest.mark.parametrize("stage", [{"$unionWith": "view"}, {"$facet": {"all": [{"$unionWith": "view"}]}}], ids=str)
def test_unions_are_refused_wherever_the_collections_are(
    cluster: RunningCluster, filled: Documents, session: ClientSession, stage: Document
) -> None:
    database = filled.database
    database.create_collection("view", viewOn=filled.name)
    with cluster.direct("config.0.mongod") as mongod, mongod.start_session() as plain:
        plain.start_transaction()
        expected = outcome_of(mongod.refused, plain, {"aggregate": "c", "pipeline": [stage], "cursor": {}})
        plain.abort_transaction()
        for collection in (filled.name, "unsharded"):
            session.start_transaction()
            filled.find_one({}, session=session)
            outcome = outcome_of(database, session, {"aggregate": collection, "pipeline": [stage], "cursor": {}})
            session.abort_transaction()
            assert (outcome[0], outcome[2]) == (expected[0], expected[2])
            assert outcome[1].removeprefix("PlanExecutor error during aggregation :: caused by :: ") == expected[1]


def _finds_one(collection: Documents, join: Document, session: ClientSession) -> bool:
    return [len(each["found"]) for each in collection.aggregate([join], session=session)] == [1]


def _same_key(collection: str) -> Document:
    fields = {"connectFromField": "key", "connectToField": "key", "as": "found"}
    return {"from": collection, "startWith": "$key", **fields}


def test_one_snapshot_for_all_shards(filled: Documents, session: ClientSession) -> None:
    with session.start_transaction(read_concern=ReadConcern("snapshot")):
        assert filled.count_documents({"key": {"$lt": SPLIT_AT}}, session=session) == 10
        filled.insert_many([{"key": 5}, {"key": SPLIT_AT + 5}])
        assert filled.count_documents({}, session=session) == 20
    assert filled.count_documents({}) == 22


def test_one_snapshot_for_all_shards_if_a_write_comes_first(filled: Documents, session: ClientSession) -> None:
    with session.start_transaction(read_concern=ReadConcern("snapshot")):
        filled.insert_one({"_id": "first", "key": 1}, session=session)
        filled.update_many({"key": {"$gte": SPLIT_AT}}, {"$set": {"is_later": True}})
        assert filled.count_documents({"is_later": True}, session=session) == 0
    assert filled.count_documents({"is_later": True}) > 0


def test_a_single_writer_commits_after_the_readers(filled: Documents, session: ClientSession) -> None:
    with session.start_transaction():
        assert filled.find_one({"key": 1}, session=session) is not None
        filled.update_one({"key": SPLIT_AT}, {"$set": {"x": 1}}, session=session)
    assert filled.count_documents({"x": 1}) == 1


def test_a_session_that_goes_on_needs_no_noops(filled: Documents, session: ClientSession, lower_mongod: Client) -> None:
    """Each transaction begins after the previous one, whose time the shard has reached with it."""

    def noops() -> int:
        commands = lower_mongod.admin.command("serverStatus")["metrics"]["commands"]
        return int(commands.get("appendOplogNote", {}).get("total", 0))

    before = noops()
    for _ in range(20):
        with session.start_transaction():
            filled.update_one({"key": 1}, {"$inc": {"x": 1}}, session=session)
    # Others in the cluster may write some meanwhile.
    assert noops() - before < 10


def test_error_of_a_statement_aborts_all_shards(filled: Documents, session: ClientSession) -> None:
    session.start_transaction()
    filled.insert_one({"_id": "other shard", "key": SPLIT_AT + 20}, session=session)
    with pytest.raises(DuplicateKeyError):
        filled.insert_one({"_id": 1, "key": 1}, session=session)
    with pytest.raises(OperationFailure) as raised:
        filled.find_one({"key": 1}, session=session)
    assert raised.value.code == ErrorCode.NoSuchTransaction
    assert raised.value.has_error_label("TransientTransactionError")
    session.abort_transaction()
    assert filled.find_one({"_id": "other shard"}) is None
    # Nothing holds the document any longer.
    filled.insert_one({"_id": "other shard", "key": SPLIT_AT + 20})


def test_write_conflict_is_transient(filled: Documents, session: ClientSession, client: Client) -> None:
    session.start_transaction()
    filled.update_one({"key": 1}, {"$set": {"x": 1}}, session=session)
    with client.start_session() as other:
        other.start_transaction()
        with pytest.raises(OperationFailure) as raised:
            filled.update_many({}, {"$set": {"x": 2}}, session=other)
        assert raised.value.code == ErrorCode.WriteConflict
        assert raised.value.has_error_label("TransientTransactionError")
        other.abort_transaction()
    session.commit_transaction()
    assert filled.count_documents({"x": 1}) == 1


def test_newer_transaction_ends_the_open_one(filled: Documents, client: Client, cluster: RunningCluster) -> None:
    raw = RawClient(cluster.address("router.0"))
    session = {"id": Binary.from_uuid(uuid4())}

    def run(number: int, command: Document) -> Document:
        fields = {"lsid": session, "txnNumber": Int64(number), "autocommit": False, "startTransaction": True}
        return raw.command({**command, **fields}, db=filled.database.name)

    updating = {"q": {}, "u": {"$set": {"x": 1}}, "multi": True}
    assert run(1, {"update": filled.name, "updates": [updating]})["n"] == 20
    assert run(2, {"find": filled.name, "filter": {"x": 1}})["cursor"]["firstBatch"] == []
    assert filled.update_many({}, {"$set": {"x": 2}}).modified_count == 20
    raw.command({"killSessions": [session]})
    raw.socket.close()


def test_any_worker_of_a_router_carries_any_statement(cluster: RunningCluster, filled: Documents) -> None:
    database = filled.database.name
    with extra_router(cluster, "--workers", "2") as (address, _):
        clients = connect_to_all(address, workers=2, connections=8)
        for number, (first, second) in enumerate(pairwise(clients)):
            fields = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1), "autocommit": False}
            documents = [{"_id": f"{number}.{key}", "key": key} for key in (1, SPLIT_AT)]
            begun = first.command(
                {"insert": filled.name, "documents": documents, **fields, "startTransaction": True}, db=database
            )
            assert begun["n"] == 2, begun
            found = second.command({"find": filled.name, "batchSize": 3, **fields}, db=database)
            more = {"getMore": Int64(found["cursor"]["id"]), "collection": filled.name, **fields}
            assert first.command(more, db=database)["ok"] == 1
            committed = second.command({"commitTransaction": 1, **fields})
            assert committed["ok"] == 1, committed
            assert committed["recoveryToken"] == {"recoveryShardId": LOWER}
        assert filled.count_documents({"key": SPLIT_AT}) == len(clients)
        for client in clients:
            client.socket.close()


def test_another_router_learns_the_outcome_by_the_token(cluster: RunningCluster, filled: Documents) -> None:
    first, second = RawClient(cluster.address("router.0")), RawClient(cluster.address("router.1"))
    for is_committed in (True, False):
        fields = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1), "autocommit": False}
        updating = {"q": {}, "u": {"$set": {"x": is_committed}}, "multi": True}
        begun = first.command(
            {"update": filled.name, "updates": [updating], **fields, "startTransaction": True}, db=filled.database.name
        )
        if is_committed:
            assert first.command({"commitTransaction": 1, **fields})["ok"] == 1
        learned = second.command({"commitTransaction": 1, "recoveryToken": begun["recoveryToken"], **fields})
        assert learned["ok"] == int(is_committed)
        assert is_committed or (learned["code"], learned["errorLabels"]) == (251, ["TransientTransactionError"])
        first.command({"killSessions": [fields["lsid"]]})
    assert filled.count_documents({"x": True}) == 20
    for client in (first, second):
        client.socket.close()


def test_killed_session_ends_its_transaction(filled: Documents, session: ClientSession, client: Client) -> None:
    session.start_transaction()
    filled.update_many({}, {"$set": {"x": 1}}, session=session)
    client.admin.command("killSessions", [{"id": session.session_id["id"]}])
    with pytest.raises(OperationFailure) as raised:
        session.commit_transaction()
    assert raised.value.code == ErrorCode.NoSuchTransaction
    assert filled.update_many({}, {"$set": {"x": 2}}).modified_count == 20


@pytest.fixture
def short_lived(lower_mongod: Client, upper_mongod: Client) -> Iterator[None]:
    """Limit the lifetime of transactions on mongods to a second during the test."""
    mongods, name = (lower_mongod, upper_mongod), "transactionLifetimeLimitSeconds"
    before = [mongod.admin.command({"getParameter": 1, name: 1})[name] for mongod in mongods]
    for mongod in mongods:
        mongod.admin.command({"setParameter": 1, name: 1})
    yield
    for mongod, seconds in zip(mongods, before, strict=True):
        mongod.admin.command({"setParameter": 1, name: seconds})


@pytest.mark.parametrize("is_committing", [False, True])
@pytest.mark.parametrize("shards", [1, 2])
def test_transaction_ends_with_its_lifetime(
    short_lived: None,
    filled: Documents,
    session: ClientSession,
    lower_mongod: Client,
    upper_mongod: Client,
    is_committing: bool,
    shards: int,
) -> None:
    session.start_transaction()
    filled.update_many({"key": {"$in": [1, SPLIT_AT][:shards]}}, {"$set": {"x": 1}}, session=session)
    idle: list[Document] = [{"$currentOp": {"allUsers": True}}, {"$match": {"type": "idleSession"}}]

    def is_over() -> bool:
        return not any(list(mongod.admin.aggregate(idle)) for mongod in (lower_mongod, upper_mongod))

    eventually(is_over, what="the transaction's end")
    following = session.commit_transaction if is_committing else partial(filled.find_one, {"key": 1}, session=session)
    with pytest.raises(OperationFailure) as raised:
        following()
    assert raised.value.code == ErrorCode.NoSuchTransaction
    assert raised.value.has_error_label("TransientTransactionError")
    assert filled.update_many({}, {"$set": {"x": 2}}).modified_count == 20


def test_commit_that_takes_too_long(filled: Documents, session: ClientSession, cluster: RunningCluster) -> None:
    """Its outcome is unknown to the client until the next commit attempt; the commit itself continues."""
    session.start_transaction(max_commit_time_ms=1500)
    for key in (1, SPLIT_AT):  # the shard of the first statement coordinates
        filled.update_one({"key": key}, {"$set": {"x": 1}}, session=session)
    with cluster.direct(f"{LOWER}.0.shardd") as shard, fail_point(shard, "hangBeforeWritingDecision") as point:
        with pytest.raises(OperationFailure) as raised:
            session.commit_transaction()
        assert raised.value.code == ErrorCode.MaxTimeMSExpired
        assert raised.value.has_error_label("UnknownTransactionCommitResult")
        assert filled.count_documents({"x": 1}) == 0
        point.turn_off()
        session.commit_transaction()
    assert filled.count_documents({"x": 1}) == 2


def test_server_status_counts(filled: Documents, session: ClientSession, client: Client) -> None:
    before = client.admin.command("serverStatus")["transactions"]
    with session.start_transaction():
        filled.update_many({}, {"$set": {"x": 1}}, session=session)
        during = client.admin.command("serverStatus")["transactions"]
    after = client.admin.command("serverStatus")["transactions"]
    assert during["currentOpen"] == before["currentOpen"] + 1
    assert after["currentOpen"] == before["currentOpen"]
    assert after["totalStarted"] == before["totalStarted"] + 1
    assert after["totalContactedParticipants"] == before["totalContactedParticipants"] + 2
    counts = after["commitTypes"]["twoPhaseCommit"]
    assert counts["successful"] == before["commitTypes"]["twoPhaseCommit"]["successful"] + 1


def test_cursors_end_with_their_transaction(filled: Documents, session: ClientSession, client: Client) -> None:
    def open_cursors() -> int:
        count: int = client.admin.command("serverStatus")["metrics"]["cursor"]["open"]["total"]
        return count

    before = open_cursors()
    for end in (session.commit_transaction, session.abort_transaction):
        session.start_transaction()
        next(filled.find({}, batch_size=2, session=session))
        # The driver would kill it when nobody refers to the cursor any longer; the reply alone keeps it open.
        filled.database.command({"find": filled.name, "batchSize": 2}, session=session)
        assert open_cursors() > before
        end()
        assert open_cursors() == before


@pytest.mark.parametrize("sort", [None, {"value": 1}], ids=["unsorted", "sorted"])
def test_a_commit_does_not_wait_for_results_that_nobody_has_read(
    filled: Documents, session: ClientSession, sort: Document | None
) -> None:
    """They are more than fits into a socket, so that the shard cannot finish its answer."""
    value, keys = "x" * 10_000, (*range(10, 490), *range(SPLIT_AT + 10, SPLIT_AT + 490))
    filled.insert_many([{"_id": key, "key": key, "value": f"{key % 500:05}{value}"} for key in keys])
    db, name = filled.database, filled.name
    with session.start_transaction():
        find = {"find": name, "batchSize": 101, **({"sort": sort} if sort else {})}
        cursor = db.command(find, session=session)["cursor"]["id"]
        get_more = {"getMore": Int64(cursor), "collection": name, **({"batchSize": 20} if sort else {})}
        for _ in range(2 if sort is None else 8):
            assert db.command(get_more, session=session)["cursor"]["id"]
        for key in (1, SPLIT_AT + 1):
            filled.update_one({"key": key}, {"$set": {"seen": True}}, session=session)
        began = monotonic()
    assert monotonic() - began < COMMIT_SECONDS_MAX
    assert filled.count_documents({"seen": True}) == 2


COMMIT_SECONDS_MAX: Final = 30.0
"""Less than the lifetime of a transaction, and more than a commit takes on any machine."""


def test_current_op_shows_open_transactions(filled: Documents, session: ClientSession, client: Client) -> None:
    session.start_transaction(read_concern=ReadConcern("snapshot"))
    filled.insert_one({"key": SPLIT_AT}, session=session)
    assert filled.count_documents({}, session=session) == 21
    listing: list[Document] = [
        {"$currentOp": {"allUsers": True, "localOps": True}},
        {"$match": {"type": "idleSession", "lsid.id": session.session_id["id"]}},
    ]
    [shown] = client.admin.aggregate(listing)
    assert (shown["desc"], shown["active"]) == ("inactive transaction", False)
    transaction = shown["transaction"]
    assert transaction.keys() == {
        *("parameters", "globalReadTimestamp", "startWallClockTime", "timeOpenMicros", "timeActiveMicros"),
        *("timeInactiveMicros", "numParticipants", "participants", "numReadOnlyParticipants"),
        "numNonReadOnlyParticipants",
    }
    assert transaction["parameters"]["readConcern"]["level"] == "snapshot"
    assert transaction["participants"] == [
        {"name": UPPER, "coordinator": True, "readOnly": False},
        {"name": LOWER, "coordinator": False, "readOnly": True},
    ]
    assert (transaction["numReadOnlyParticipants"], transaction["numNonReadOnlyParticipants"]) == (1, 1)
    assert transaction["timeActiveMicros"] + transaction["timeInactiveMicros"] <= transaction["timeOpenMicros"] + 1
    session.abort_transaction()
    assert list(client.admin.aggregate(listing)) == []


def test_stale_routing_in_the_first_statement_is_hidden(
    filled: Documents, other_client: Client, client: Client
) -> None:
    stale = other_client[filled.database.name][filled.name]
    assert stale.count_documents({}) == 20
    client.admin.command("split", filled.full_name, middle={"key": 5})
    client.admin.command("moveChunk", filled.full_name, find={"key": 5}, to=UPPER)
    with other_client.start_session() as session, session.start_transaction():
        assert stale.find_one({"key": 6}, session=session) is not None


def test_stale_routing_in_a_later_statement_is_transient(
    filled: Documents, other_client: Client, client: Client
) -> None:
    stale = other_client[filled.database.name][filled.name]
    assert stale.count_documents({}) == 20
    stale.database.unsharded.insert_one({"_id": 1})
    client.admin.command("split", filled.full_name, middle={"key": 5})
    client.admin.command("moveChunk", filled.full_name, find={"key": 5}, to=UPPER)

    def read(session: ClientSession) -> Document | None:
        assert stale.database.unsharded.find_one({}, session=session) is not None
        return stale.find_one({"key": 6}, session=session)

    with other_client.start_session() as session:
        session.start_transaction()
        with pytest.raises(OperationFailure) as raised:
            read(session)
        assert raised.value.has_error_label("TransientTransactionError")
        session.abort_transaction()
        assert session.with_transaction(read) is not None


def test_the_admin_database_has_transactions_of_its_own(
    filled: Documents, session: ClientSession, client: Client
) -> None:
    own = client.admin.get_collection(f"own_{uuid4().hex[:8]}")
    own.insert_one({"_id": 0})
    with session.start_transaction():
        own.insert_one({"_id": 1}, session=session)
        assert [each["_id"] for each in own.find(session=session)] == [0, 1]
    assert own.count_documents({}) == 2
    for first, second in ((own, filled), (filled, own)):
        session.start_transaction()
        first.insert_one({"_id": "a", "key": 1}, session=session)
        with pytest.raises(OperationFailure) as raised:
            second.insert_one({"_id": "a", "key": 1}, session=session)
        assert raised.value.code == ErrorCode.OperationNotSupportedInTransaction
        assert not raised.value.has_error_label("TransientTransactionError")
        session.abort_transaction()
    assert own.count_documents({}) == 2
    assert filled.count_documents({}) == 20
    own.delete_many({})  # nobody may drop it


@pytest.mark.parametrize(
    "statement",
    [
        {"find": "c", "showRecordId": True},
        {"find": "c", "min": {"_id": 0}, "hint": {"_id": 1}},
        {"find": "c", "filter": {"key": 1}},
        {
            "aggregate": "c",
            "pipeline": [{"$unionWith": {"coll": "d", "pipeline": [{"$indexStats": {}}]}}],
            "cursor": {},
        },
        {"aggregate": "c", "pipeline": [{"$match": {"key": 1}}], "cursor": {}},
        {"insert": "c", "documents": [{"key": 1}], "collectionUUID": Binary.from_uuid(UUID(int=1))},
        {"update": "c", "updates": [{"q": {"key": 1}, "u": {"$set": {"a": 1}}, "hint": {"key": 1}}]},
        {"count": "c"},
    ],
    ids=lambda statement: "-".join(statement),
)
def test_the_strict_api_applies_to_the_arguments_of_statements(
    cluster: RunningCluster, filled: Documents, statement: Document
) -> None:
    """As on a mongod, and the same becomes of the transaction."""
    named = dict([(next(iter(statement)), filled.name), *list(statement.items())[1:]])
    strict = ServerApi("1", strict=True)
    outcomes = []
    for server in ("router.0", "shard0.0.mongod"):
        with cluster.direct(server, server_api=strict) as client, client.start_session() as session:
            run = partial(outcome_of, client[filled.database.name], session)
            session.start_transaction()
            outcomes.append(
                [run({"find": filled.name, "limit": 1}), run(named), run({"find": filled.name, "limit": 1})]
            )
            session.abort_transaction()
    assert outcomes[0] == outcomes[1]


def outcome_of(database: Database[Document], session: ClientSession, command: Document) -> tuple[int | None, str, bool]:
    """The code and the message of the error, and whether it is labelled as a transient one."""
    try:
        database.command(command, session=session)
    except OperationFailure as error:
        message = str((error.details or {})["errmsg"])
        return error.code, message, error.has_error_label("TransientTransactionError")
    return 0, "", False


STABLE: Document = {"apiVersion": "1"}
STRICT: Document = {**STABLE, "apiStrict": True}
NOT_STRICT: Document = {**STABLE, "apiStrict": False}


@pytest.mark.parametrize(
    ("first", "later"),
    [(STABLE, {}), ({}, STABLE), (STABLE, STRICT), (STABLE, NOT_STRICT), (STRICT, STABLE), (STRICT, STRICT)],
    ids=str,
)
@pytest.mark.parametrize("command", ["find", "getMore", "commitTransaction", "abortTransaction", "second commit"])
def test_all_commands_have_the_parameters_of_the_stable_api_that_the_first_one_has(
    cluster: RunningCluster, filled: Documents, first: Document, later: Document, command: str
) -> None:
    """As on a mongod; after the error, the transaction continues."""
    outcomes = []
    for server in ("router.0", "shard0.0.mongod"):
        session = {"lsid": {"id": Binary.from_uuid(uuid4())}, "txnNumber": Int64(1), "autocommit": False}
        with raw_client(cluster.address(server)) as client:

            def run(body: Document, client: RawClient = client, session: Document = session) -> object:
                db = "admin" if "Transaction" in next(iter(body)) else filled.database.name
                reply = client.command({**body, **session}, db=db)
                return "done" if reply["ok"] else (reply["code"], reply["errmsg"], reply.get("errorLabels"))

            find = {"find": filled.name, "filter": {"key": 1}}
            outcome = [run({**find, "startTransaction": True, **first})]
            if command == "second commit":
                outcome.append(run({"commitTransaction": 1, **first}))
            others: dict[str, Document] = {
                "find": find,
                "getMore": {"getMore": Int64(12345), "collection": filled.name},
                "abortTransaction": {"abortTransaction": 1},
            }
            second = others.get(command, {"commitTransaction": 1})
            outcome += [run({**second, **later}), run({"abortTransaction": 1, **first})]
            outcomes.append(outcome)
    assert outcomes[0] == outcomes[1]


def test_a_read_that_takes_too_long_leaves_no_transaction_open(
    cluster: RunningCluster, filled: Documents, lower_mongod: Client, upper_mongod: Client
) -> None:
    """Though it may begin the transaction on a shard after it was given up, and after the abort."""
    ids = [uuid4() for _ in range(1_200)]

    def read_and_abort(mine: list[UUID]) -> None:
        with raw_client(cluster.address("router.0")) as router:
            for number, each in enumerate(mine):
                session = {"lsid": {"id": Binary.from_uuid(each)}, "txnNumber": Int64(1), "autocommit": False}
                find = {"find": filled.name, **session, "startTransaction": True, "maxTimeMS": 1 + number % 4}
                router.command(find, db=filled.database.name)
                router.command({"abortTransaction": 1, **session})

    with ThreadPoolExecutor() as pool:
        for reading in [pool.submit(read_and_abort, ids[start::4]) for start in range(4)]:
            reading.result(60)
    operations: Document = {"$currentOp": {"allUsers": True, "idleSessions": True}}
    stages: list[Document] = [operations, {"$match": {"transaction.parameters.autocommit": False}}]

    def left_open() -> set[UUID]:
        found = (each for mongod in (lower_mongod, upper_mongod) for each in mongod.admin.aggregate(stages))
        return {each["lsid"]["id"].as_uuid() for each in found}.intersection(ids)

    eventually(lambda: not left_open(), within=20, what="all transactions have been aborted")
