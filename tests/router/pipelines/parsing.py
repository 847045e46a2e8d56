"""Pipelines for tests."""

from typing import Any

import bson

from shardwright.sharding.pipelines.pipeline import Pipeline, Stage
from tests.router.reads.requests import request


def parsed(*stages: object) -> Pipeline:
    """A pipeline as a client sends it."""
    return Pipeline.parse(request({"aggregate": "c", "pipeline": list(stages), "cursor": {}}))


def decoded(stages: tuple[Stage, ...]) -> list[dict[str, Any]]:
    """Stages as documents."""
    return [bson.decode(stage.raw) for stage in stages]
