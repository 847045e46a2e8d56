"""``docs/correctness.md`` and ``docs/faults.md`` name tests that exist, and all workloads and nemeses."""

import re
from pathlib import Path
from typing import Final

from tests.chaos.nemeses import NEMESES
from tests.chaos.workloads import WORKLOADS

TESTS: Final = Path(__file__).parent.parent
PAGES: Final = "\n".join(
    (TESTS.parent / "docs" / name).read_text(encoding="utf-8") for name in ("correctness.md", "faults.md")
)


def test_every_test_that_is_named_exists() -> None:
    named = set(re.findall(r"`([a-z_/]+/test_[a-z_]+\.py)`", PAGES))
    assert len(named) > 10
    assert [name for name in sorted(named) if not (TESTS / name).exists()] == []


def test_every_workload_and_nemesis_is_named() -> None:
    assert set(re.findall(r"\*([a-z_]+)\*", PAGES)) == WORKLOADS.keys() | NEMESES.keys()
