"""The two lock files: the demo's packages are a part of the developers' packages, in the same versions."""

import re
from pathlib import Path

from tests.syntax import ROOT

PINNED = re.compile(r"(?m)^([A-Za-z0-9._-]+)==(\S+)((?: \\\n    --hash=sha256:[0-9a-f]{64})+)$")


def pinned(path: Path) -> dict[str, tuple[str, str]]:
    """Version and hashes of each package in a lock file."""
    return {name: (version, hashes) for name, version, hashes in PINNED.findall(path.read_text())}


def test_the_demo_has_the_versions_of_the_tests() -> None:
    every, run = (pinned(ROOT / name) for name in ("requirements.lock", "requirements-run.lock"))
    assert len(run) > 15
    assert run.items() <= every.items()
    assert not {"mypy", "pytest", "mkdocs"} & run.keys()
