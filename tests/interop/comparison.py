"""Having the same dialogue with a genuine cluster and with ours."""

from collections.abc import Callable
from difflib import unified_diff
from typing import Any

from tests.interop.deployment import Deployment


def assert_same(both: tuple[Deployment, Deployment], ask: Callable[[Deployment], Any]) -> Any:  # noqa: ANN401 - what is asked for
    """Ask both clusters, and find that the answers mean the same; our answer."""
    genuine, ours = both
    expected, found = ask(genuine), ask(ours)
    difference = "\n".join(unified_diff(genuine.normal(expected), ours.normal(found), "genuine", "ours", "", "", 8, ""))
    assert not difference, difference
    return found
