"""``docs/correctness.md`` names tests and workloads that exist, and all workloads and nemeses."""

import re
from pathlib import Path
from typing import Final

from tests.chaos.nemeses import NEMESES
from tests.chaos.workloads import WORKLOADS

TESTS: Final = Path(__file__).parent.parent
PAGE: Final = (TESTS.parent / "docs" / "correctness.md").read_text(encoding="utf-8")


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+/test_[a-z_]+\.py)`", PAGE))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (TESTS / name).exists()] == []


def test_every_workload_and_nemesis_is_named() -> None:
    assert set(re.findall(r"\*([a-z_]+)\*", PAGE)) == WORKLOADS.keys() | NEMESES.keys()
