"""Stages that MongoDB does not know, or not where they stand, are refused with mongod's code and message."""

from collections.abc import Iterator

import pytest
from pymongo.database import Database
from pymongo.errors import OperationFailure

from shardwright.router.operations.checked_pipeline import EXECUTING
from shardwright.wire.error_codes import ErrorCode
from tests.integration.sharded import Document, shard_by_range
from tests.local_cluster import Client

API_STRICT: Document = {"apiVersion": "1", "apiStrict": True}


@pytest.fixture(scope="module")
def data(client: Client) -> Iterator[Database[Document]]:
    """A collection on both shards."""
    database = client["aggregation_errors"]
    shard_by_range(database)
    database.ranged.insert_many([{"_id": n, "key": n * 25} for n in range(40)])
    yield database
    client.drop_database(database.name)


@pytest.fixture(scope="module")
def alone(lower_mongod: Client) -> Iterator[Database[Document]]:
    """A collection of the same name on one mongod alone."""
    database = lower_mongod["aggregation_errors_alone"]
    database.ranged.insert_one({"key": 1})
    yield database
    lower_mongod.drop_database(database.name)


def refusal(database: Database[Document], collection: object, stages: list[Document]) -> tuple[object, object]:
    """Code and message of the error."""
    with pytest.raises(OperationFailure) as refused:
        database.command({"aggregate": collection, "pipeline": stages, "cursor": {}})
    assert refused.value.details is not None
    return refused.value.code, refused.value.details["errmsg"]


ANYWHERE: list[Document] = [
    {"$unknown": 1},
    {"$search": {"text": {"query": "a", "path": "b"}}},
    {"$searchMeta": {}},
    {"$vectorSearch": {}},
    {"$listSearchIndexes": {}},
    {"$documents": 3},
    {"$geoNear": {}},
    {"$merge": {"into": 3}},
    {"$unwind": 3},
    {"$densify": 3},
    {"$fill": 3},
    {"$setWindowFields": {"output": {"r": {"$unknown": {}}}}},
]
"""Stages that are refused wherever they stand."""

OF_SERVERS: list[Document] = [{"$_internalDensify": {}}, {"$queue": []}]
"""Stages that only servers send."""

ON_NOTHING: list[Document] = [
    {"$match": {}},
    {"$group": {"_id": 1}},
    {"$limit": 1},
    {"$listSessions": {}},
    {"$currentOp": {}},
    {"$collStats": {"count": {}}},
    {"$indexStats": {}},
    {"$planCacheStats": {}},
    {"$out": "written"},
    {"$merge": "written"},
    {"$unionWith": "ranged"},
]
"""Stages that are refused without a collection."""

ON_A_COLLECTION: list[list[Document]] = [
    [{"$documents": [{"a": 1}]}],
    [{"$listLocalSessions": {}}],
    [{"$currentOp": {}}],
    [{"$match": {}}, {"$collStats": {}}],
    [{"$limit": 3}, {"$indexStats": {}}],
    [{"$out": "written"}, {"$limit": 1}],
    [{"$facet": {"a": [{"$merge": "written"}]}}],
    [{"$facet": {"a": [{"$out": "written"}]}}],
    [{"$lookup": {"from": "other", "as": "x", "pipeline": [{"$merge": "written"}]}}],
    [{"$unionWith": {"coll": "other", "pipeline": [{"$out": "written"}]}}],
    [{"$facet": {"a": [{"$unknown": 1}]}}],
]


@pytest.mark.parametrize("stage", [*ANYWHERE, *ON_NOTHING], ids=str)
def test_stages_without_a_collection(data: Database[Document], alone: Database[Document], stage: Document) -> None:
    code, text = refusal(alone, 1, [stage])
    if "$documents" in stage:
        text = str(text).removeprefix(EXECUTING)  # routers evaluate it themselves
    assert refusal(data, 1, [stage]) == (code, text)


@pytest.mark.parametrize(
    "stages",
    [*([stage] for stage in ANYWHERE), *([{"$limit": 3}, stage] for stage in ANYWHERE), *ON_A_COLLECTION],
    ids=str,
)
def test_stages_on_a_collection(data: Database[Document], alone: Database[Document], stages: list[Document]) -> None:
    assert refusal(data, "ranged", stages) == refusal(alone, "ranged", stages)


@pytest.mark.parametrize(
    "later",
    [
        [{"$currentOp": {}}],
        [{"$match": {}}, {"$currentOp": {"allUsers": True}}],
        [{"$facet": {"a": [{"$currentOp": {}}]}}],
        [{"$unionWith": {"coll": "other", "pipeline": [{"$currentOp": {}}]}}],
        [{"$indexStats": {}}],
    ],
    ids=str,
)
def test_operations_are_shown_by_a_first_stage_alone(
    client: Client, lower_mongod: Client, later: list[Document]
) -> None:
    stages = [{"$currentOp": {}}, *later]
    assert refusal(client.admin, 1, stages) == refusal(lower_mongod.admin, 1, stages)


@pytest.mark.parametrize("stage", OF_SERVERS, ids=str)
def test_stages_of_servers(data: Database[Document], alone: Database[Document], stage: Document) -> None:
    assert refusal(data, 1, [stage]) == refusal(alone, 1, [stage])
    for stages in ([stage], [{"$limit": 3}, stage]):
        assert refusal(data, "ranged", stages) == refusal(alone, "ranged", stages)


def test_halves_are_checked_against_the_stable_api(data: Database[Document]) -> None:
    grouping: Document = {"$group": {"_id": {"$lt": ["$key", 500]}, "n": {"$sum": 1}}}
    command = {"aggregate": "ranged", "pipeline": [grouping, {"$sort": {"_id": 1}}], "cursor": {"batchSize": 1}}
    reply = data.command({**command, **API_STRICT})
    more = data.command({"getMore": reply["cursor"]["id"], "collection": "ranged", **API_STRICT})
    assert reply["cursor"]["firstBatch"] + more["cursor"]["nextBatch"] == [
        {"_id": False, "n": 20},
        {"_id": True, "n": 20},
    ]
    for stages in (
        [grouping, {"$_internalInhibitOptimization": {}}],
        [{"$sort": {"key": 1}}, {"$_internalInhibitOptimization": {}}],
    ):
        with pytest.raises(OperationFailure) as refused:
            data.command({**command, "pipeline": stages, **API_STRICT})
        assert refused.value.code == ErrorCode.APIStrictError


@pytest.mark.parametrize("explain", [True, False])
def test_the_stable_api_has_no_explanation_within_an_aggregation(
    data: Database[Document], lower_mongod: Client, explain: bool
) -> None:
    command: Document = {"aggregate": "ranged", "pipeline": [], "cursor": {}, "explain": explain, **API_STRICT}
    refusals = []
    for database in (data, lower_mongod[data.name]):
        with pytest.raises(OperationFailure) as refused:
            database.command(command)
        assert refused.value.details is not None
        refusals.append((refused.value.code, refused.value.details["errmsg"]))
    assert refusals[0] == refusals[1]


@pytest.mark.parametrize("last", [[], [{"$sort": {"key": 1}}], [{"$group": {"_id": "$r"}}]], ids=str)
def test_variables_have_one_value_on_all_shards(data: Database[Document], last: list[Document]) -> None:
    variables = {"r": {"$rand": {}}, "gone": "$$REMOVE", "text": {"$concat": [{"$literal": "$"}, "a"]}}
    drawing = {"$project": {"r": "$$r", "gone": "$$gone", "text": "$$text", "key": 1}}
    found = list(data.ranged.aggregate([drawing, *last], let=variables))
    assert len({each["r"] if "r" in each else each["_id"] for each in found}) == 1
    assert all("gone" not in each and each.get("text", "$a") == "$a" for each in found)
