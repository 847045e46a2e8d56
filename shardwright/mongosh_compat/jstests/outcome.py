"""The outcome of a suite."""

from dataclasses import dataclass
from enum import Enum

from shardwright.mongosh_compat.jstests.suite import Suite


class Result(Enum):
    """Result of a suite; it is skipped if it needs something that is not available."""

    PASS = "pass"
    FAIL = "fail"
    SKIP = "skip"


@dataclass(frozen=True)
class Outcome:
    """The outcome of one suite, with the message of the failed assertion or the reason for skipping it."""

    suite: Suite
    result: Result
    message: str = ""
    line: int | None = None
    stack: str = ""
    output: str = ""
    seconds: float = 0.0

    @property
    def place(self) -> str:
        """The file, with the line that failed."""
        return self.suite.name if self.line is None else f"{self.suite.name}:{self.line}"
