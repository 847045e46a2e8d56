"""Change stream events in the router: its reads, its additions, and the filters that run on shards."""

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp

from shardwright.router.change_streams.catalog_events import database_of, namespace_of, operation_type
from shardwright.router.change_streams.specification import ClientStages, Specification
from tests.router.reads.pipelines import pipeline_of

NS = {"db": "d", "coll": "a.b"}


def stages(*given: dict[str, Any], needs_images: bool = False) -> ClientStages:
    return ClientStages.of(pipeline_of(*given).stages, needs_images=needs_images)


def test_what_an_event_is_about() -> None:
    event = bson.encode({"_id": {}, "operationType": "insert", "ns": NS})
    assert (operation_type(event), database_of(event), namespace_of(event)) == ("insert", "d", "d.a.b")
    dropped = bson.encode({"operationType": "dropDatabase", "ns": {"db": "d"}})
    assert (operation_type(dropped), database_of(dropped), namespace_of(dropped)) == ("dropDatabase", "d", "")
    assert (operation_type(bson.encode({})), database_of(bson.encode({}))) == ("", "")


def test_no_stages() -> None:
    assert stages() == ClientStages((), (), True)


def test_leading_matches_run_on_the_shards() -> None:
    divided = stages({"$match": {"fullDocument.x": 1}}, {"$project": {"x": 1}}, {"$match": {"y": 1}})
    assert len(divided.raw) == 3
    assert not divided.run_on_shards
    (match,) = (bson.decode(stage) for stage in divided.for_shards)
    catalog_events, query = match["$match"]["$or"]
    assert query == {"fullDocument.x": 1}
    assert {"drop", "rename", "invalidate"} < set(catalog_events["operationType"]["$in"])
    assert stages({"$match": {"x": 1}}, {"$match": {"y": 1}}).run_on_shards


@pytest.mark.parametrize(
    "match",
    [
        {"documentKey.x": 1},
        {"preImageId": {"$exists": False}},
        {"$expr": {"$eq": ["$documentKey.x", 1]}},
        {"$expr": {"$eq": ["$$ROOT", 1]}},
        {"$jsonSchema": {"maxProperties": 6}},
        {"$sampleRate": 0.5},
        {"$expr": {"$lt": [{"$rand": {}}, 0.5]}},
    ],
)
def test_what_the_router_completes_or_would_draw_again_is_not_matched_on_shards(match: dict[str, Any]) -> None:
    assert stages({"$match": match}).for_shards == ()
    assert not stages({"$match": match}).run_on_shards


@pytest.mark.parametrize("name", ["fullDocument.x", "fullDocumentBeforeChange.x"])
def test_what_does_not_read_a_document_is_matched_on_shards_before_it_is_looked_up(name: str) -> None:
    assert stages({"$match": {name: 1}}, needs_images=True).for_shards == ()
    of_collection = {"ns.coll": "a"}
    assert stages({"$match": of_collection}, needs_images=True).run_on_shards
    for query in ({**of_collection, name: 1}, {"$and": [{name: 1}, of_collection]}):
        divided = stages({"$match": query}, {"$match": {"operationType": "update"}}, needs_images=True)
        assert not divided.run_on_shards
        queries = [bson.decode(stage)["$match"]["$or"][1] for stage in divided.for_shards]
        assert queries == [of_collection, {"operationType": "update"}]
    assert stages({"$match": {"$or": [of_collection, {name: 1}]}}, needs_images=True).for_shards == ()


def specification(**given: Any) -> Specification:  # noqa: ANN401 - options of any type
    parsed = Specification.parse(pipeline_of({"$changeStream": given}).stages[0])
    assert parsed is not None
    return parsed


def test_which_documents_are_needed() -> None:
    assert not specification().needs_images
    assert not specification(fullDocument="default", fullDocumentBeforeChange="off").needs_images
    assert specification(fullDocument="updateLookup").needs_images
    assert specification(fullDocumentBeforeChange="whenAvailable").needs_images


def shards_stage(**given: Any) -> dict[str, Any]:  # noqa: ANN401 - options of any type
    stage: dict[str, Any] = bson.decode(specification(**given).starting_at(Timestamp(1, 1)))["$changeStream"]
    return stage


@pytest.mark.parametrize("given", [{}, {"fullDocumentBeforeChange": "off"}])
def test_shards_name_pre_images_that_no_client_asks_for(given: dict[str, Any]) -> None:
    assert shards_stage(**given)["fullDocumentBeforeChange"] == "whenAvailable"


@pytest.mark.parametrize("given", ["required", "whenAvailable", "nonsense", 5, None])
def test_shards_judge_what_a_client_asks_for(given: object) -> None:
    assert shards_stage(fullDocumentBeforeChange=given)["fullDocumentBeforeChange"] == given


def test_which_token_must_be_found() -> None:
    event = {"_data": "826B02D43C000000012B022C0100296E5A1004EC86AF65B89A489DB40094343625336B461E5F6964002B140004"}
    mark, invalidation = {"_data": "826B02D43B000000172B0229296E04"}, {"_data": "826B02D43C000000102B022C0100296F04"}
    assert specification(resumeAfter=event).must_be_found is not None
    assert specification(startAfter=event).must_be_found is not None
    assert specification(resumeAfter=event, startAfter=event).must_be_found is None
    assert specification(resumeAfter=mark).must_be_found is None
    assert specification(startAfter=invalidation).must_be_found is None
    assert specification().must_be_found is None
    assert Specification.parse(pipeline_of({"$changeStream": 5}).stages[0]) is None
