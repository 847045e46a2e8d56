"""Pipelines of updates, which a mongod parses before it refuses them: some stages end it then."""

from typing import Any, Final

import pytest

from tests.access_control.documents import with_fields
from tests.access_control.users import raw_user
from tests.local_cluster import RunningCluster

Stage = dict[str, Any]

MERGE_CURSORS: Final[Stage] = {
    "$mergeCursors": {
        "compareWholeSortKey": False,
        "remotes": [{"shardId": "shard0", "hostAndPort": "127.0.0.1:1", "cursorResponse": {}}],
        "nss": "shop.plain",
        "allowPartialResults": False,
    }
}
JOIN: Final[Stage] = {"$lookup": with_fields(("from", "plain"), ("from", "goods"), ("pipeline", []), ("as", "x"))}
GRAPH: Final[Stage] = {
    "$graphLookup": with_fields(
        *(("from", "plain"), ("from", "goods"), ("startWith", 1), ("connectFromField", "a")),
        *(("connectToField", "a"), ("as", "x")),
    )
}
HAZARDS: Final[dict[str, Stage]] = {
    "cursors": MERGE_CURSORS,
    "cursors in a facet": {"$facet": {"x": [MERGE_CURSORS]}},
    "join": JOIN,
    "graph": GRAPH,
    "join in a facet": {"$facet": {"x": [JOIN]}},
    "pre-images": {"$_internalChangeStreamAddPreImage": {"fullDocumentBeforeChange": "off"}},
    "queue": {"$queue": [{"a": 1}]},
    "variable": {"$setVariableFromSubPipeline": {"setVariable": "$$SEARCH_META", "pipeline": []}},
    "buckets": {"$_internalUnpackBucket": {"exclude": [], "timeField": "t", "bucketMaxSpanSeconds": 3600}},
}


def updates(stage: Stage) -> list[dict[str, Any]]:
    """Commands with a stage in the pipeline of an update, which matches nothing."""
    none: dict[str, Any] = {"_id": "nothing"}
    update = {"update": "goods", "updates": [{"q": none, "u": [{"$set": {"a": 1}}, stage]}]}
    find_and_modify = {"findAndModify": "goods", "query": none, "update": [stage]}
    return [update, find_and_modify, {"explain": update}, {"explain": find_and_modify}]


def merges(stage: Stage) -> list[dict[str, Any]]:
    """Commands with a stage in the pipeline of a ``$merge``."""
    merge = {"$merge": {"into": "merged", "whenMatched": [stage]}}
    aggregate = {"aggregate": "goods", "pipeline": [{"$limit": 1}, merge], "cursor": {}}
    view = {"create": "merging", "viewOn": "goods", "pipeline": [merge]}
    return [aggregate, {"explain": aggregate}, view]


@pytest.mark.parametrize("name", HAZARDS)
def test_a_router_lets_none_of_them_reach_a_shard(closed: RunningCluster, name: str) -> None:
    with raw_user(closed, "writer") as client:
        for command in (*updates(HAZARDS[name]), *merges(HAZARDS[name])):
            reply = client.command(command, db="shop")
            assert reply["ok"] == 0, command
            assert reply["code"] in (13, 40413, 40324, 5491300), reply
        assert client.command({"count": "goods"}, db="shop")["n"] > 0


def test_allowed_stages_still_update(closed: RunningCluster) -> None:
    with raw_user(closed, "writer") as client:
        stages: list[Stage] = [{"$set": {"a": {"$add": [1, 1]}}}, {"$addFields": {"b": 1}}, {"$unset": "b"}]
        update = {"q": {"_id": "updated"}, "u": stages, "upsert": True}
        assert client.command({"update": "plain", "updates": [update]}, db="shop")["n"] == 1
        found = client.command({"findAndModify": "plain", "query": {"_id": "updated"}, "remove": True}, db="shop")
        assert found["value"] == {"_id": "updated", "a": 2}
        refused = client.command({"update": "plain", "updates": [{"q": {}, "u": [{"$match": {}}]}]}, db="shop")
        assert refused["writeErrors"][0]["errmsg"] == "$match is not allowed to be used within an update"
