"""Comparing a genuine cluster with ours by the same commands."""

from collections.abc import Callable
from difflib import unified_diff
from typing import Any

from tests.interop.deployment import Deployment


def assert_same(both: tuple[Deployment, Deployment], ask: Callable[[Deployment], Any]) -> Any:  # noqa: ANN401 - what is asked for
    """Query both clusters, and check that the results are equivalent; returns ours."""
    genuine, ours = both
    expected, found = ask(genuine), ask(ours)
    difference = "\n".join(unified_diff(genuine.normal(expected), ours.normal(found), "genuine", "ours", "", "", 8, ""))
    assert not difference, difference
    return found
