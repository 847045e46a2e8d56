"""The commands that the parts of a pipeline become, their filter, and the stages that clients may not send."""

from datetime import UTC, datetime
from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from shardwright.router.pipelines.commands import (
    Remote,
    merge_cursors,
    merger_command,
    runtime_constants,
    shards_command,
)
from shardwright.router.pipelines.stages import check_stages
from shardwright.sharding.pipelines.pipeline import leading_filter
from shardwright.wire.errors import CommandError
from tests.router.pipelines.parsing import parsed

CONSTANTS = runtime_constants(datetime(2020, 1, 1, tzinfo=UTC), Timestamp(5, 1))
SENT: dict[str, Any] = {
    "aggregate": "c",
    "pipeline": [],
    "cursor": {"batchSize": 7},
    "hint": "k_1",
    "collation": {"locale": "fr"},
    "lsid": {"id": 1},
    "apiVersion": "1",
    "writeConcern": {"w": 1},
    "maxTimeMS": 5,
    "let": {"x": 1},
    "$readPreference": {"mode": "secondary"},
    "$db": "test",
}
CURSOR = {"id": bson.Int64(5), "ns": "test.c", "firstBatch": []}
REMOTE = Remote("shard0", "a:1", bson.encode(CURSOR))


def test_the_shards_half_returns_no_documents_at_once() -> None:
    stages = parsed({"$match": {"a": 1}}).stages
    command = bson.decode(shards_command(bson.encode(SENT), stages, CONSTANTS, needs_merge=True))
    constants = command.pop("runtimeConstants")
    assert constants == {"localNow": datetime(2020, 1, 1), "clusterTime": Timestamp(5, 1)}
    kept = ("aggregate", "hint", "collation", "lsid", "maxTimeMS", "let", "$readPreference", "$db")
    assert command == {name: SENT[name] for name in kept} | {
        "pipeline": [{"$match": {"a": 1}}],
        "cursor": {"batchSize": 0},
        "fromMongos": True,
        "needsMerge": True,
    }


@pytest.mark.parametrize("stage", [{"$facet": {}}, {"$out": "d"}])
def test_the_mergers_half_reads_the_cursors(stage: dict[str, Any]) -> None:
    stages = parsed(stage).stages
    reading = merge_cursors([REMOTE], "test.c", {"a": -1})
    command = bson.decode(merger_command(bson.encode(SENT), reading, stages, CONSTANTS, {"locale": "de"}))
    source, *others = command["pipeline"]
    assert source["$mergeCursors"]["remotes"] == [
        {"shardId": "shard0", "hostAndPort": "a:1", "cursorResponse": {"cursor": CURSOR, "ok": 1.0}}
    ]
    assert (source["$mergeCursors"]["sort"], source["$mergeCursors"]["nss"]) == ({"a": -1}, "test.c")
    assert others == [stage]
    assert command["collation"] == {"locale": "de"}
    assert (command["cursor"], command["lsid"]) == (SENT["cursor"], SENT["lsid"])
    assert "hint" not in command
    is_writing = "$out" in stage
    assert ("writeConcern" in command, "$readPreference" in command) == (is_writing, not is_writing)


def test_a_half_that_another_reads_belongs_to_no_transaction() -> None:
    reading = merge_cursors([REMOTE], "test.c")
    part = merger_command(bson.encode(SENT), reading, (), CONSTANTS, {"locale": "de"}, is_read_by_mongod=True)
    command = bson.decode(part)
    assert command["lsid"] == SENT["lsid"]
    assert "txnNumber" not in command
    assert command["cursor"] == {"batchSize": 0}


def test_merging_what_belongs_to_no_collection() -> None:
    sent = bson.encode({**SENT, "aggregate": 1})
    part = merger_command(sent, merge_cursors([REMOTE], "admin.$cmd.aggregate"), (), CONSTANTS, {})
    command = bson.decode(part)
    assert next(iter(command.items())) == ("aggregate", "merged")


@pytest.mark.parametrize(
    ("stages", "expected"),
    [
        ([], {}),
        ([{"$match": {"k": 1}}], {"k": 1}),
        ([{"$match": {"k": 1}}, {"$match": {"k": 2}}], {"$and": [{"k": 1}, {"k": 2}]}),
        ([{"$sort": {"k": 1}}, {"$match": {"k": 2}}], {"k": 2}),
        ([{"$limit": 1}, {"$match": {"k": 2}}], {}),
        ([{"$geoNear": {"query": {"k": 1}, "distanceField": "k"}}, {"$match": {"k": 20}}], {"k": 1}),
        ([{"$geoNear": {}}], {}),
        ([{"$match": 3}], {}),
    ],
)
def test_the_filter_that_all_documents_pass(stages: list[dict[str, Any]], expected: dict[str, Any]) -> None:
    assert bson.decode(leading_filter(parsed(*stages))) == expected


@pytest.mark.parametrize(
    ("stage", "name"),
    [
        ({"$mergeCursors": {}}, "$mergeCursors"),
        ({"$group": {"_id": 1, "$doingMerge": True}}, "$doingMerge"),
        ({"$facet": {"a": [{"$lookup": {"pipeline": [{"$mergeCursors": {}}]}}]}}, "$mergeCursors"),
    ],
)
def test_clients_may_not_send_what_reads_cursors(stage: dict[str, Any], name: str) -> None:
    with pytest.raises(CommandError) as refused:
        check_stages(parsed({"$match": {}}, stage))
    assert (refused.value.code, refused.value.message) == (5491300, f"{name} is not allowed in user requests")


@pytest.mark.parametrize(
    "stage", [{"$_internalDensify": {}}, {"$unionWith": {"coll": "a", "pipeline": [{"$queue": []}]}}], ids=str
)
def test_clients_may_not_send_stages_of_servers(stage: dict[str, Any]) -> None:
    """A genuine shard that merges would accept them from this router."""
    with pytest.raises(CommandError) as refused:
        check_stages(parsed({"$match": {}}, stage))
    assert refused.value.code == 5491300
    assert refused.value.message.endswith("' is not allowed in user requests")


def test_the_names_may_be_values() -> None:
    check_stages(parsed({"$match": {"a": "$mergeCursors"}}))
