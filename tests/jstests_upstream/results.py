"""The results of files in a report with a line of JSON for each, so that a run can be continued and compared."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from shardwright.mongosh_compat.jstests.suite import Outcome, Result


@dataclass(frozen=True)
class FileResult:
    """The result of one file.

    Attributes:
        file: its path below ``jstests`` in the checkout.
        message: the assertion that failed, or why it was skipped.
        line: the line that failed, if known.
        stack: where the error was raised.
    """

    file: str
    result: Result
    message: str = ""
    line: int | None = None
    stack: str = ""
    seconds: float = 0.0

    @classmethod
    def of(cls, outcome: Outcome) -> "FileResult":
        """The result of a file that was run under this name."""
        return cls(
            *(outcome.suite.name, outcome.result, outcome.message, outcome.line, outcome.stack),
            seconds=round(outcome.seconds, 1),
        )


Report = Mapping[str, FileResult]
"""The last result of each file."""


def append(path: Path, result: FileResult) -> None:
    """Add a line to a report, which need not exist."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as report:
        report.write(json.dumps({**asdict(result), "result": result.result.value}) + "\n")


def read_report(path: Path) -> dict[str, FileResult]:
    """The results in a report; none if there is no such file."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found = [FileResult(**{**entry, "result": Result(entry["result"])}) for entry in map(json.loads, lines)]
    return {each.file: each for each in found}


def changes(earlier: Report, report: Report) -> list[str]:
    """A line for each file of both reports whose result differs."""
    return [
        f"{earlier[file].result.value} -> {now.result.value}: {file}"
        for file, now in sorted(report.items())
        if file in earlier and earlier[file].result is not now.result
    ]
