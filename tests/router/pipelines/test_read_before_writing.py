"""Stages that make a merger read everything before it inserts."""

import bson
import pytest

from shardwright.router.pipelines.commands import reading_before_writing, with_disk
from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.message import OpMsg, op_msg
from shardwright.wire.request import Request

STRICT = {"$merge": {"into": "t", "whenMatched": "fail"}}


def names(*stages: dict[str, object]) -> list[str]:
    command = {"aggregate": "c", "pipeline": list(stages), "cursor": {}, "$db": "d"}
    request = Request(OpMsg(op_msg(bson.encode(command), request_id=1)))
    return [stage.name for stage in reading_before_writing(Pipeline.parse(request).stages)]


@pytest.mark.parametrize("writing", [{"$out": "t"}, {"$out": {"db": "d", "coll": "t"}}, STRICT], ids=str)
def test_everything_is_read_before_documents_are_inserted(writing: dict[str, object]) -> None:
    [name] = writing
    assert names(writing) == ["$sort", name]
    assert names({"$match": {}}, {"$limit": 5}, writing) == ["$match", "$limit", "$sort", name]


@pytest.mark.parametrize("reading", [{"$sort": {"a": 1}}, {"$group": {"_id": "$a"}}], ids=str)
def test_a_stage_that_reads_everything_is_enough(reading: dict[str, object]) -> None:
    [name] = reading
    assert names(reading, {"$limit": 5}, {"$out": "t"}) == [name, "$limit", "$out"]


@pytest.mark.parametrize("last", [{"$merge": "t"}, {"$merge": {"into": "t"}}, {"$match": {}}], ids=str)
def test_updates_and_reads_need_nothing(last: dict[str, object]) -> None:
    [name] = last
    assert names({"$unwind": "$a"}, last) == ["$unwind", name]
    assert names() == []


def test_the_disk_may_be_used_whatever_the_client_allows() -> None:
    for given in ({}, {"allowDiskUse": False}):
        assert bson.decode(with_disk(bson.encode({"aggregate": "c", **given}))) == {
            "aggregate": "c",
            "allowDiskUse": True,
        }
