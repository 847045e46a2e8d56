"""Whether the changelog is ready for a release: it has an entry for the version, and no fragment is left.

``make release`` runs this first.
"""

import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent
FRAGMENTS: Final = ROOT / "newsfragments"


def fragments() -> list[Path]:
    """The fragments that are not in the changelog yet."""
    return sorted(path for path in FRAGMENTS.iterdir() if path.name != "README.md")


def fragment_types() -> set[str]:
    """The types that towncrier is configured to have."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return {kind["directory"] for kind in settings["tool"]["towncrier"]["type"]}


def version() -> str:
    """The version in ``pyproject.toml``, the only place that has it."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    number = settings["project"]["version"]
    assert isinstance(number, str)
    return number


def faults() -> Iterator[str]:
    """Reasons against a release."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version())} ", changelog, re.MULTILINE):
        yield f"CHANGELOG.md has no entry for {version()}: run `towncrier build --version {version()}`"
    if names := [path.name for path in fragments()]:
        yield f"newsfragments/ has {', '.join(names)}: run `towncrier build --version {version()}`"


if __name__ == "__main__":
    sys.exit("\n".join(faults()) or None)
