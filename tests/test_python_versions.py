"""``make test`` runs on the oldest Python that is admitted, and tries the others."""

import re
import tomllib
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parent.parent
PROJECT: Final[dict[str, Any]] = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAKEFILE: Final = (ROOT / "Makefile").read_text()


def oldest() -> str:
    """The version that ``requires-python`` begins with."""
    return str(PROJECT["project"]["requires-python"]).removeprefix(">=")


def test_checks_and_tests_are_those_of_the_oldest_version() -> None:
    assert f"command -v python{oldest()} ||" in MAKEFILE
    assert PROJECT["tool"]["mypy"]["python_version"] == oldest()
    assert PROJECT["tool"]["ruff"]["target-version"] == f"py{oldest().replace('.', '')}"


def test_every_version_that_is_named_is_tried() -> None:
    named = re.findall(r"Python :: (3\.\d+)\b", "\n".join(PROJECT["project"]["classifiers"]))
    tried = re.search(r"^OTHER_PYTHONS := (.*)$", MAKEFILE, re.MULTILINE)
    assert tried is not None
    assert named[0] == oldest()
    assert set(named[1:]) <= set(tried[1].split())


def test_what_is_tried_is_there() -> None:
    quick = re.search(r"^QUICK := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert quick is not None
    for pattern in quick[1].replace("\\", "").split():
        assert list(ROOT.glob(pattern)), pattern
