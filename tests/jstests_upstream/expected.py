"""The files that are not expected to pass, read from ``expected.md``, and how a report differs from them."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from shardwright.mongosh_compat.jstests.suite import Result
from tests.jstests_upstream.results import Report

EXPECTED: Final = Path(__file__).parent / "expected.md"

_ROW: Final = re.compile(r"\| `(?P<file>[\w/.-]+\.js)` \| (?P<result>skip|fail) \| (?P<reason>\S.*) \|")
_COLUMNS: Final = ("passed", "failed", "skipped", "unexpected")
_FOLDER_WIDTH: Final = 36
_WIDTH: Final = 12

Expectations = Mapping[str, Result]
"""The expected result of each file that does not pass."""


def read_expected(path: Path = EXPECTED) -> dict[str, Result]:
    """The files of all tables.

    Raises:
        ValueError: a row names no single file, result and reason, or a file has two rows.
    """
    expected: dict[str, Result] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        if not line.startswith("| `"):
            continue
        row = _ROW.fullmatch(line)
        if row is None:
            raise ValueError(f"no file, result and reason: {line}")
        if row["file"] in expected:
            raise ValueError(f"{row['file']} has two rows")
        expected[row["file"]] = Result(row["result"])
    return expected


def expectations(definition: str | None, directory: Path = EXPECTED.parent) -> tuple[Expectations, Expectations]:
    """The expected results of all files, and the part of them that a run must confirm.

    A definition's own list adds to the list of all files, or overrides it. Files in
    that list may pass with a definition.

    Args:
        definition: the name of MongoDB's definition of a suite; None for files without a preparation.
        directory: has ``expected.md``, and ``expected/DEFINITION.md``.
    """
    everywhere = read_expected(directory / EXPECTED.name)
    own = directory / EXPECTED.stem / f"{definition}.md"
    confirmed = everywhere if definition is None else read_expected(own) if own.exists() else {}
    return {**everywhere, **confirmed}, confirmed


@dataclass(frozen=True)
class Verdict:
    """The difference between a report and the expectations.

    Attributes:
        expected: the results of all files that may not pass.
        confirmed: the results that this report must show again, for the files that it has.
    """

    report: Report
    expected: Expectations
    confirmed: Expectations

    @property
    def unexpected(self) -> list[str]:
        """The files that do not pass and have no row, or one with another result."""
        return sorted(
            file
            for file, one in self.report.items()
            if one.result is not Result.PASS and one.result is not self.expected.get(file)
        )

    @property
    def outdated(self) -> list[str]:
        """The files that pass though they have a row."""
        passed = {file for file, one in self.report.items() if one.result is Result.PASS}
        return sorted(passed & self.confirmed.keys())

    def text(self) -> str:
        """A line for each folder and one for all files, followed by the files that differ."""
        folders = sorted({_folder(file) for file in self.report})
        return "\n".join(
            [
                _line("folder", _COLUMNS),
                *(_line(folder, self._counts(folder)) for folder in folders),
                _line("all", self._counts()),
                *(self._difference(file) for file in self.unexpected),
                *(f"PASSES THOUGH LISTED: {file}" for file in self.outdated),
            ]
        )

    def _counts(self, folder: str | None = None) -> list[int]:
        files = [file for file in self.report if folder is None or _folder(file) == folder]
        counted = Counter(self.report[file].result for file in files)
        return [counted[Result.PASS], counted[Result.FAIL], counted[Result.SKIP], len({*files} & {*self.unexpected})]

    def _difference(self, file: str) -> str:
        one = self.report[file]
        place = file if one.line is None else f"{file}:{one.line}"
        return f"UNEXPECTED {one.result.value.upper()}: {place}: {one.message.splitlines()[0] if one.message else ''}"


def _folder(file: str) -> str:
    return str(PurePosixPath(file).parent)


def _line(name: str, cells: Sequence[object]) -> str:
    return name.ljust(_FOLDER_WIDTH) + "".join(str(cell).rjust(_WIDTH) for cell in cells)
