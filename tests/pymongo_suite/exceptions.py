"""The tests that may fail on the cluster, and the files that are not run, read from the tables in ``exceptions.md``."""

import re
from pathlib import Path
from typing import Final

EXCEPTIONS: Final = Path(__file__).parent / "exceptions.md"

_FILE: Final = r"`[\w/*]+\.py`"
_FILES_ROW: Final = re.compile(rf"\| (?P<files>{_FILE}(, {_FILE})*) \| (?P<reason>\S.*) \|")
_ROW: Final = re.compile(r"\| `(?P<file>[\w/]+)\.py::(?P<test>[^`]+)` \| (?P<reason>\S.*) \|")


def read_exceptions(path: Path = EXCEPTIONS) -> dict[str, frozenset[str]]:
    """The excepted tests of each file.

    Raises:
        ValueError: a line of a table names neither a test nor files, or gives no reason.
    """
    exceptions: dict[str, set[str]] = {}
    for line in _rows(path):
        if _FILES_ROW.fullmatch(line):
            continue
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"no test and reason: {line}")
        exceptions.setdefault(row["file"], set()).add(row["test"])
    return {file: frozenset(tests) for file, tests in exceptions.items()}


def read_files_not_run(path: Path = EXCEPTIONS) -> list[str]:
    """The names of the files that are not run, as patterns without the suffix."""
    rows = filter(None, map(_FILES_ROW.fullmatch, _rows(path)))
    return [name.strip("`").removesuffix(".py") for row in rows for name in row["files"].split(", ")]


def _rows(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("| `")]
