"""A plugin of pytest for the suite: tests of specifications that are skipped for the topology alone say so.

The suite gives the same reason for whatever a test requires: the topology, a version or a parameter of the server.
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pytest

from tests.pymongo_suite.skip_reasons import RUN_ON_OTHERS

_MODULE: Final = "test.unified_format"

Requirement = Mapping[str, Any]


@pytest.hookimpl
def pytest_collection_finish() -> None:
    """From now on, the suite is asked once more without the topologies before it skips a test."""
    suite = sys.modules.get(_MODULE)
    if suite is None:
        return
    mixin = suite.UnifiedSpecTestMixinV1
    should_run_on = mixin.should_run_on

    def should_run_here(requirements: Sequence[Requirement]) -> bool:
        if should_run_on(requirements):
            return True
        if should_run_on([_anywhere(each) for each in requirements]):
            pytest.skip(RUN_ON_OTHERS)
        return False

    mixin.should_run_on = staticmethod(should_run_here)


def _anywhere(requirement: Requirement) -> Requirement:
    return {name: value for name, value in requirement.items() if name != "topologies"}
