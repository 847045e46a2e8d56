"""Reads on a real cluster that cannot be compared with a plain mongod."""

from collections.abc import Iterator
from typing import Any

import bson
import pytest
from pymongo import ReadPreference
from pymongo.cursor_shared import CursorType
from pymongo.errors import CursorNotFound, OperationFailure
from pymongo.read_concern import ReadConcern

from shardwright.wire.error_codes import ErrorCode
from tests.local_cluster import RunningCluster

DB = "router_reads"
COUNT = 300

Database = Any
"""A pymongo database."""


@pytest.fixture(scope="module")
def db(cluster: RunningCluster) -> Iterator[Database]:
    """A database with ``ranged``, 200 documents on one shard and 100 on the other, and ``whole`` on the first alone."""
    # A cursor lives in one router, so all go to the same one.
    with cluster.direct("router.0") as connected:
        first, second = sorted(cluster.shards)
        admin = connected.admin
        admin.command({"enableSharding": DB, "primaryShard": first})
        admin.command({"shardCollection": f"{DB}.ranged", "key": {"k": 1}})
        admin.command({"split": f"{DB}.ranged", "middle": {"k": 200}})
        admin.command({"moveRange": f"{DB}.ranged", "min": {"k": 200}, "toShard": second})
        for name in ("ranged", "whole"):
            connected[DB][name].insert_many(
                [{"_id": n, "k": n, "g": n % 7, "s": "aAbB"[n % 4], "pad": "x" * 500} for n in range(COUNT)]
            )
        yield connected[DB]
        connected.drop_database(DB)


def code_of(db: Database, command: dict[str, Any], **options: Any) -> int:  # noqa: ANN401 - as pymongo
    """The error code of a command's reply."""
    with pytest.raises(OperationFailure) as failed:
        db.command(command, **options)
    return failed.value.code or 0


class TestFind:
    @pytest.mark.parametrize("batch_size", [0, 2, 50, 101, 1000])
    @pytest.mark.parametrize("sort", [None, [("k", -1)]])
    def test_every_document_comes_once(self, db: Database, batch_size: int, sort: list[Any] | None) -> None:
        found = [document["k"] for document in db.ranged.find(batch_size=batch_size, sort=sort)]
        expected = list(range(COUNT))
        assert (found if sort else sorted(found, reverse=True)) == expected[::-1]

    def test_a_missing_database_gives_nothing(self, cluster: RunningCluster) -> None:
        with cluster.client() as client:
            missing = client["router_reads_missing"]
            assert list(missing.c.find()) == []
            assert missing.command("count", "c")["n"] == 0
            assert missing.c.distinct("a") == []
            assert list(missing.c.aggregate([{"$match": {}}])) == []
            assert "router_reads_missing" not in client.list_database_names()

    def test_a_name_that_no_collection_has_is_refused_even_where_there_is_no_database(
        self, cluster: RunningCluster
    ) -> None:
        with cluster.client() as client:
            assert code_of(client["router_reads_missing"], {"find": "a$b"}) == 73

    def test_the_catalog_can_be_read(self, cluster: RunningCluster, db: Database) -> None:
        config = db.client.config
        assert sorted(shard["_id"] for shard in config.shards.find()) == sorted(cluster.shards)
        uuid = config.collections.find_one({"_id": f"{DB}.ranged"})["uuid"]
        assert config.chunks.count_documents({"uuid": uuid}) == 2

    def test_a_snapshot_is_of_one_time_on_all_shards(self, db: Database) -> None:
        reply = db.command({"find": "ranged", "readConcern": {"level": "snapshot"}, "batchSize": 1000})
        time = reply["cursor"]["atClusterTime"]
        assert len(reply["cursor"]["firstBatch"]) == COUNT
        db.ranged.insert_one({"_id": COUNT, "k": COUNT})
        try:
            then = {"level": "snapshot", "atClusterTime": time}
            again = db.command({"find": "ranged", "readConcern": then, "batchSize": 1000})["cursor"]
            assert len(again["firstBatch"]) == COUNT
            assert again["atClusterTime"] == time
        finally:
            db.ranged.delete_one({"k": COUNT})

    def test_a_tailable_cursor_waits_for_what_comes(self, db: Database) -> None:
        db.create_collection("capped", capped=True, size=100_000)
        db.capped.insert_one({"_id": 1})
        cursor = db.capped.find(cursor_type=CursorType.TAILABLE_AWAIT).max_await_time_ms(100)
        assert next(cursor)["_id"] == 1
        assert cursor.alive
        db.capped.insert_one({"_id": 2})
        assert next(cursor)["_id"] == 2
        cursor.close()

    def test_a_view_is_resolved_where_its_collection_is(self, db: Database) -> None:
        db.create_collection("odd", viewOn="whole", pipeline=[{"$match": {"k": {"$mod": [2, 1]}}}])
        assert len(list(db.odd.find(batch_size=20))) == COUNT // 2
        assert db.odd.count_documents({"k": {"$lt": 10}}) == 5
        assert db.command("count", "odd")["n"] == COUNT // 2
        assert sorted(db.odd.distinct("g")) == list(range(7))

    def test_any_read_preference_is_served(self, db: Database) -> None:
        for preference in (
            ReadPreference.PRIMARY_PREFERRED,
            ReadPreference.SECONDARY_PREFERRED,
            ReadPreference.NEAREST,
        ):
            collection = db.ranged.with_options(read_preference=preference, read_concern=ReadConcern("majority"))
            assert len(list(collection.find(batch_size=150))) == COUNT


class TestCursors:
    @pytest.mark.parametrize("name", ["ranged", "whole"])
    def test_only_its_session_reads_a_cursor(self, db: Database, name: str) -> None:
        with db.client.start_session() as one, db.client.start_session() as other:
            cursor_id = db.command({"find": name, "batchSize": 1}, session=one)["cursor"]["id"]
            get_more = {"getMore": bson.Int64(cursor_id), "collection": name, "batchSize": 1}
            assert code_of(db, dict(get_more), session=other) == 50801
            assert len(db.command(dict(get_more), session=one)["cursor"]["nextBatch"]) == 1
            assert code_of(db, {**get_more, "collection": "other"}, session=one) == 13
            assert code_of(db, {**get_more, "batchSize": -1}, session=one) == 51024
            assert code_of(db, {**get_more, "maxTimeMS": 10}, session=one) == 2
            # None of these errors ended it.
            assert db.command({"killCursors": name, "cursors": [cursor_id]})["cursorsKilled"] == [cursor_id]
            assert code_of(db, dict(get_more), session=one) == 43

    def test_killing_tells_which_were_there(self, db: Database) -> None:
        cursor_ids = [db.command({"find": "ranged", "batchSize": 1})["cursor"]["id"] for _ in range(3)]
        unknown = bson.Int64(12345)
        reply = db.command({"killCursors": "ranged", "cursors": [*cursor_ids, unknown]})
        assert reply["cursorsKilled"] == cursor_ids
        assert reply["cursorsNotFound"] == [unknown]
        assert reply["cursorsAlive"] == reply["cursorsUnknown"] == []

    def test_a_driver_meets_a_killed_cursor(self, db: Database) -> None:
        cursor = db.ranged.find(batch_size=2)
        next(cursor)
        db.command({"killCursors": "ranged", "cursors": [bson.Int64(cursor.cursor_id)]})
        with pytest.raises(CursorNotFound):
            list(cursor)

    @pytest.mark.parametrize("name", ["ranged", "whole"])
    def test_nothing_stays_open_on_the_shards(self, cluster: RunningCluster, db: Database, name: str) -> None:
        command = {"find": name, "batchSize": 1, "comment": "test_nothing_stays_open"}
        cursor_id = db.command(command)["cursor"]["id"]
        assert _cursors_on_shards(cluster) > 0
        db.command({"killCursors": name, "cursors": [bson.Int64(cursor_id)]})
        # They are killed in the background; each look needs a round trip.
        assert any(_cursors_on_shards(cluster) == 0 for _ in range(500))

    def test_a_reached_limit_leaves_nothing_open_on_the_shards(self, cluster: RunningCluster, db: Database) -> None:
        reply = db.command({"find": "ranged", "limit": 5, "batchSize": 5, "comment": "test_nothing_stays_open"})
        assert reply["cursor"]["id"] == 0
        assert any(_cursors_on_shards(cluster) == 0 for _ in range(500))

    def test_the_cursors_of_a_session_end_with_it(self, db: Database) -> None:
        with db.client.start_session() as session:
            cursor_id = db.command({"find": "ranged", "batchSize": 1}, session=session)["cursor"]["id"]
            db.command({"killSessions": [session.session_id]})
            get_more = {"getMore": bson.Int64(cursor_id), "collection": "ranged"}
            assert code_of(db, get_more, session=session) == 43


def _cursors_on_shards(cluster: RunningCluster) -> int:
    """Return the number of idle cursors of these tests on the shards' mongods."""
    found = 0
    for shard in cluster.shards:
        with cluster.direct(f"{shard}.0.mongod") as mongod:
            pipeline: list[dict[str, Any]] = [
                {"$currentOp": {"idleCursors": True, "allUsers": True}},
                {"$match": {"type": "idleCursor", "cursor.originatingCommand.comment": "test_nothing_stays_open"}},
            ]
            found += len(list(mongod.admin.aggregate(pipeline)))
    return found


class TestCountAndDistinct:
    def test_a_count_tells_what_each_shard_has(self, cluster: RunningCluster, db: Database) -> None:
        first, second = sorted(cluster.shards)
        assert db.command("count", "ranged", query={"k": {"$gte": 0}})["shards"] == {first: 200, second: 100}
        assert db.command("count", "ranged", query={"k": 5})["shards"] == {first: 1}

    def test_counting_documents_as_drivers_do(self, db: Database) -> None:
        assert db.ranged.count_documents({"k": {"$gte": 150}}) == 150
        assert db.ranged.count_documents({"k": {"$gte": 150}}, skip=100, limit=80) == 50
        assert db.ranged.count_documents({"k": -1}) == 0
        assert db.ranged.estimated_document_count() == COUNT

    def test_distinct_values_under_a_collation_are_found_by_a_mongod(self, db: Database) -> None:
        assert sorted(db.ranged.distinct("s")) == ["A", "B", "a", "b"]
        insensitive = db.ranged.distinct("s", collation={"locale": "en", "strength": 2})
        assert sorted(value.lower() for value in insensitive) == ["a", "b"]

    def test_a_distinct_of_a_snapshot_is_refused_on_a_sharded_collection(self, db: Database) -> None:
        command = {"distinct": "ranged", "key": "g", "readConcern": {"level": "snapshot"}}
        assert code_of(db, command) == 72


class TestAggregate:
    def test_what_one_shard_has_can_be_aggregated_in_any_way(self, db: Database) -> None:
        group = {"$group": {"_id": "$g", "n": {"$sum": 1}}}
        assert len(list(db.whole.aggregate([group]))) == 7
        assert list(db.ranged.aggregate([{"$match": {"k": 8}}, group])) == [{"_id": 1, "n": 1}]

    def test_groups_of_all_shards_are_merged(self, db: Database) -> None:
        groups = list(db.ranged.aggregate([{"$group": {"_id": "$g", "n": {"$sum": 1}}}], batchSize=2))
        assert {group["_id"]: group["n"] for group in groups} == {rest: len(range(rest, COUNT, 7)) for rest in range(7)}

    def test_batches_of_a_merged_pipeline(self, db: Database) -> None:
        pipeline = [{"$match": {"g": {"$gt": 1}}}, {"$sort": {"k": -1}}, {"$project": {"k": 1}}]
        found = [document["k"] for document in db.ranged.aggregate(pipeline, batchSize=7)]
        assert found == [n for n in reversed(range(COUNT)) if n % 7 > 1]

    def test_joins_within_a_shard(self, db: Database) -> None:
        lookup = {"$lookup": {"from": "whole", "localField": "k", "foreignField": "k", "as": "same"}}
        [joined] = db.whole.aggregate([{"$match": {"k": 5}}, lookup])
        assert len(joined["same"]) == 1
        db.whole.aggregate([{"$match": {"g": 1}}, {"$out": "copied"}])
        assert db.copied.count_documents({}) == db.whole.count_documents({"g": 1})

    def test_statistics_say_of_which_shard_they_are(self, cluster: RunningCluster, db: Database) -> None:
        first, second = sorted(cluster.shards)
        counts = {each["shard"]: each["count"] for each in db.ranged.aggregate([{"$collStats": {"count": {}}}])}
        assert counts == {first: 200, second: 100}
        assert {each["shard"] for each in db.ranged.aggregate([{"$indexStats": {}}])} == {first, second}
        assert [each["shard"] for each in db.whole.aggregate([{"$collStats": {"count": {}}}])] == [first]

    def test_operations_of_all_shards(self, cluster: RunningCluster, db: Database) -> None:
        found = list(db.client.admin.aggregate([{"$currentOp": {"idleConnections": True, "allUsers": True}}]))
        assert {each["shard"] for each in found} == set(cluster.shards)
        assert all(str(each["opid"]).startswith(f"{each['shard']}:") for each in found if "opid" in each)

    @pytest.mark.parametrize(
        ("fields", "code"),
        [
            ({"needsMerge": True}, ErrorCode.FailedToParse),
            ({"needsMerge": False}, ErrorCode.FailedToParse),
            ({"needsMerge": True, "fromMongos": False}, 51089),
            ({"needsMerge": False, "fromMongos": True}, 51089),
            ({"fromMongos": True, "exchange": {}}, 51028),
            ({"fromMongos": True}, 51089),
            ({"exchange": {}}, 51028),
            ({"runtimeConstants": {}}, 51143),
        ],
    )
    def test_what_only_routers_say_is_refused(self, db: Database, fields: dict[str, Any], code: int) -> None:
        assert code_of(db, {"aggregate": "ranged", "pipeline": [], "cursor": {}, **fields}) == code

    def test_false_is_allowed_for_what_only_routers_say(self, db: Database) -> None:
        for fields in ({"fromMongos": False}, {"fromMongos": False, "needsMerge": False}):
            command = {"aggregate": "ranged", "pipeline": [{"$count": "n"}], "cursor": {}, **fields}
            assert db.command(command)["cursor"]["firstBatch"] == [{"n": 300}]

    def test_documents_out_of_nothing(self, db: Database) -> None:
        found = db.aggregate([{"$documents": [{"a": 1}, {"a": 2}]}, {"$group": {"_id": None, "n": {"$sum": "$a"}}}])
        assert [document["n"] for document in found] == [3]


class TestExplain:
    @pytest.mark.parametrize(
        ("command", "stage", "shard_count"),
        [
            ({"find": "ranged"}, "SHARD_MERGE", 2),
            ({"find": "ranged", "sort": {"k": 1}, "skip": 3, "limit": 4}, "SHARD_MERGE_SORT", 2),
            ({"find": "ranged", "filter": {"k": 3}}, "SINGLE_SHARD", 1),
            ({"find": "whole"}, "SINGLE_SHARD", 1),
            ({"count": "ranged", "query": {"g": 3}}, "SHARD_MERGE", 2),
            ({"distinct": "ranged", "key": "g"}, "SHARD_MERGE", 2),
            ({"count": "ranged", "query": None, "collation": None}, "SHARD_MERGE", 2),
            ({"distinct": "ranged", "key": "g", "query": None, "collation": None}, "SHARD_MERGE", 2),
            ({"update": "ranged", "updates": [{"q": {"k": 3}, "u": {"$set": {"x": 1}}}]}, "SHARD_WRITE", 1),
            ({"delete": "ranged", "deletes": [{"q": {}, "limit": 0}]}, "SHARD_WRITE", 2),
            ({"findAndModify": "ranged", "query": {"k": 3}, "remove": True}, "SINGLE_SHARD", 1),
        ],
    )
    def test_what_router_and_shards_would_do(
        self, cluster: RunningCluster, db: Database, command: dict[str, Any], stage: str, shard_count: int
    ) -> None:
        reply = db.command({"explain": command, "verbosity": "allPlansExecution"})
        plan = reply["queryPlanner"]["winningPlan"]
        assert reply["queryPlanner"]["mongosPlannerVersion"] == 1
        assert plan["stage"] == stage
        assert [each["shardName"] for each in plan["shards"]] == sorted(cluster.shards)[:shard_count]
        for shard in plan["shards"]:
            assert shard["connectionString"] == cluster.shards[shard["shardName"]]
            assert shard["namespace"].startswith(DB)
            assert "winningPlan" in shard
        stats = reply["executionStats"]
        assert stats["executionStages"]["stage"] == stage
        assert stats["totalDocsExamined"] == sum(
            shard["totalDocsExamined"] for shard in stats["executionStages"]["shards"]
        )
        assert len(stats["allPlansExecution"]) == shard_count
        assert db.ranged.count_documents({"x": 1}) == 0

    @pytest.mark.parametrize("as_option", [True, False])
    def test_an_aggregation_of_an_unsharded_collection(self, db: Database, as_option: bool) -> None:
        command = {"aggregate": "whole", "pipeline": [{"$group": {"_id": "$g"}}]}
        if as_option:
            reply = db.command({**command, "explain": True})
        else:
            reply = db.command({"explain": {**command, "cursor": {}}, "verbosity": "queryPlanner"})
        assert not {"shards", "splitPipeline", "mergeType"} & set(reply)
        assert reply["queryPlanner"]["namespace"] == f"{db.name}.whole"

    def test_an_aggregation_of_several(self, cluster: RunningCluster, db: Database) -> None:
        command = {"aggregate": "ranged", "pipeline": [{"$match": {"g": 1}}, {"$sort": {"k": 1}}], "cursor": {}}
        reply = db.command({"explain": command})
        assert reply["mergeType"] == "mongos"
        assert reply["splitPipeline"]["shardsPart"] == command["pipeline"]
        assert sorted(reply["shards"]) == sorted(cluster.shards)

    @pytest.mark.parametrize(
        ("command", "code"),
        [
            ({"explain": {"explain": {"find": "c"}}}, 20),
            ({"explain": {"ping": 1}}, 20),
            ({"explain": {"foo": 1}}, 59),
            ({"explain": {}}, 59),
            ({"explain": 3}, 14),
            ({"explain": {"find": "c"}, "verbosity": "x"}, 2),
            ({"explain": {"findAndModify": "ranged", "query": {"g": 1}, "remove": True}}, 61),
        ],
    )
    def test_what_cannot_be_explained(self, db: Database, command: dict[str, Any], code: int) -> None:
        assert code_of(db, command) == code
