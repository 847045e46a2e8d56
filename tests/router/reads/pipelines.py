"""Pipelines as they would come over the wire."""

from typing import Any

from shardwright.sharding.pipelines.pipeline import Pipeline
from tests.router.reads.requests import request


def pipeline_of(*stages: dict[str, Any]) -> Pipeline:
    """The pipeline with these stages."""
    return Pipeline.parse(request({"aggregate": "c", "pipeline": list(stages)}))
