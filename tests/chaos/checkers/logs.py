"""Logs: no process had an internal error, even if no client noticed."""

from collections.abc import Iterable
from typing import Final

EXCERPT_CHARACTERS_MAX: Final = 2000


def check_daemon_log(process: str, lines: Iterable[str]) -> list[str]:
    """Find tracebacks, which a daemon logs only for internal errors, and lines that are not JSON."""
    return [_told(process, line) for line in lines if '"traceback":' in line or not line.startswith("{")]


def check_mongod_log(process: str, lines: Iterable[str]) -> list[str]:
    """Find fatal errors, with which a mongod terminates when an invariant is violated."""
    return [_told(process, line) for line in lines if '"s":"F"' in line]


def _told(process: str, line: str) -> str:
    return f"{process} logged {line.strip()[:EXCERPT_CHARACTERS_MAX]}"
