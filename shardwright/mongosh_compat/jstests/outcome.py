"""How a suite ended."""

from dataclasses import dataclass
from enum import Enum

from shardwright.mongosh_compat.jstests.suite import Suite


class Result(Enum):
    """Passed, failed, or not run to its end because it needs something that is not available."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one suite.

    Attributes:
        message: the assertion that failed, or why it was skipped.
        line: the line of the suite that failed, if known.
        stack: where the error was raised.
        output: what the suite printed.
        seconds: how long it took.
    """

    suite: Suite
    result: Result
    message: str = ""
    line: int | None = None
    stack: str = ""
    output: str = ""
    seconds: float = 0.0

    @property
    def place(self) -> str:
        """The file, with the line where it failed."""
        return self.suite.name if self.line is None else f"{self.suite.name}:{self.line}"
