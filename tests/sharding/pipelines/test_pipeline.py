"""Parsing a pipeline as far as routing needs it."""

from typing import Any

import pytest

from shardwright.sharding.pipelines.pipeline import Pipeline
from shardwright.wire.errors import CommandError
from tests.router.reads.requests import request


def parsed(*stages: object) -> Pipeline:
    return Pipeline.parse(request({"aggregate": "c", "pipeline": list(stages), "cursor": {}}))


def test_collections_that_stages_name() -> None:
    stages: list[dict[str, Any]] = [
        {"$match": {"from": "d"}},
        {"$unionWith": "d"},
        {"$out": {"db": "other", "coll": "e"}},
    ]
    assert parsed(*stages).involved_namespaces("test") == {"test.d": False, "other.e": True}
    assert parsed(stages[0]).involved_namespaces("test") == {}


@pytest.mark.parametrize(
    ("pipeline", "code"), [(3, 14), ([3], 14), ([{}], 40323), ([{"$match": {}, "$sort": {}}], 40323), (None, 14)]
)
def test_a_malformed_pipeline_is_refused(pipeline: object, code: int) -> None:
    with pytest.raises(CommandError) as refused:
        Pipeline.parse(request({"aggregate": "c", "pipeline": pipeline}))
    assert refused.value.code == code


def test_a_missing_pipeline_is_refused() -> None:
    with pytest.raises(CommandError, match=r"aggregate\.pipeline' is missing"):
        Pipeline.parse(request({"aggregate": "c"}))
