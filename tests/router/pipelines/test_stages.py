"""The stages of MongoDB."""

import pytest

from shardwright.router.access.pipeline_needs import FOR_CLUSTER_ALONE, SOURCES, WITHOUT_NAMES
from shardwright.router.commands.aggregations import QUERY_STATS
from shardwright.router.pipelines.stages import is_known


def test_access_control_and_routing_know_the_same_stages() -> None:
    later = {QUERY_STATS}  # MongoDB 6.0 does not know it
    assert {each for each in SOURCES | WITHOUT_NAMES | FOR_CLUSTER_ALONE if not is_known(each)} == later


@pytest.mark.parametrize("stage", ["$lookup", "$merge", "$facet", "$_internalInhibitOptimization"])
def test_a_stage_of_mongodb_is_known(stage: str) -> None:
    assert is_known(stage)


@pytest.mark.parametrize("stage", ["$unknown", "match", "", "$exchange", "$backupCursor"])
def test_what_is_no_stage_is_not_known(stage: str) -> None:
    assert not is_known(stage)
