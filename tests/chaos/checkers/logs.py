"""Logs: no process failed in a way that is its own fault, even if no client noticed."""

from collections.abc import Iterable
from typing import Final

EXCERPT_CHARACTERS_MAX: Final = 2000


def check_daemon_log(process: str, lines: Iterable[str]) -> list[str]:
    """A daemon logs tracebacks for its own faults only; and what is not JSON, it did not mean to write."""
    return [_told(process, line) for line in lines if '"traceback":' in line or not line.startswith("{")]


def check_mongod_log(process: str, lines: Iterable[str]) -> list[str]:
    """A mongod ends itself when something that it relies on is not so."""
    return [_told(process, line) for line in lines if '"s":"F"' in line]


def _told(process: str, line: str) -> str:
    return f"{process} logged {line.strip()[:EXCERPT_CHARACTERS_MAX]}"
