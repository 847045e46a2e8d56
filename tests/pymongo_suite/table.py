"""The comparisons of all files as a table to read."""

from collections.abc import Sequence
from typing import Final

from tests.pymongo_suite.comparison import Comparison

_COLUMNS: Final = ("passed", "failed", "skipped")
_FILE_WIDTH: Final = 42
_WIDTH: Final = 9


def table(comparisons: Sequence[Comparison]) -> str:
    """A line for each file and one for all of them, followed by the tests that are lost on the cluster."""
    lines = [
        _line("", "replica set", "", "", "cluster", "", "", ""),
        _line("file", *_COLUMNS, *_COLUMNS, "lost"),
        *(_line(one.file, *one.counts(), len(one.lost)) for one in comparisons),
        _line("all", *_sums([(*one.counts(), len(one.lost)) for one in comparisons])),
    ]
    return "\n".join([*lines, *_lists(comparisons)])


def _line(name: str, *cells: object) -> str:
    return (name.ljust(_FILE_WIDTH) + "".join(str(cell).rjust(_WIDTH) for cell in cells)).rstrip()


def _sums(rows: Sequence[Sequence[int]]) -> list[int]:
    return [sum(column) for column in zip(*rows, strict=True)]


def _lists(comparisons: Sequence[Comparison]) -> list[str]:
    lines = []
    for one in comparisons:
        unexpected = set(one.unexpected)
        lines += [f"{'LOST' if test in unexpected else 'excepted'}: {one.file}.py::{test}" for test in one.lost]
        lines += [f"NO EXCEPTION ANY MORE: {one.file}.py::{test}" for test in one.outdated]
    return lines
