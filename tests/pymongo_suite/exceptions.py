"""The tests that may fail on the cluster, read from the table in ``exceptions.md``."""

import re
from pathlib import Path
from typing import Final

EXCEPTIONS: Final = Path(__file__).parent / "exceptions.md"

_ROW: Final = re.compile(r"\| `(?P<file>[\w/]+)\.py::(?P<test>[^`]+)` \| (?P<reason>\S.*) \|")


def read_exceptions(path: Path = EXCEPTIONS) -> dict[str, frozenset[str]]:
    """The excepted tests of each file.

    Raises:
        ValueError: a line of the table names no test, or gives no reason.
    """
    exceptions: dict[str, set[str]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"no test and reason: {line}")
        exceptions.setdefault(row["file"], set()).add(row["test"])
    return {file: frozenset(tests) for file, tests in exceptions.items()}
