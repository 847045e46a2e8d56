"""The file of the audit log, one JSON document a line, and its options.

Options and format are those of MongoDB Enterprise.
"""

import argparse
import json
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self

from bson import json_util

from shardwright.daemon.document_filter import Predicate, parse_filter
from shardwright.daemon.held_back import log_signals_held_back
from shardwright.daemon.log_file import LogFile, LogRotation
from shardwright.daemon.option_values import argument
from shardwright.daemon.run import explain_start_error
from shardwright.wire.logger import get_logger

logger = get_logger("daemon.audit")

_PRIVATE: Final = 0o600


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Where events are written.

    Attributes:
        path: the file, to which they are appended.
        is_wanted: decides which of them.
        rotation: what a rotation does with the file, as with the daemon's own log.
    """

    path: Path
    is_wanted: Predicate
    rotation: LogRotation = LogRotation.RENAME

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> Self | None:
        """The options in a command line; None if nothing is to be audited.

        Raises:
            ValueError: the options do not fit together; the message is for the operator.
        """
        if parsed.audit_destination is None:
            if parsed.audit_path is not None or parsed.audit_filter is not None:
                raise ValueError("--audit-path and --audit-filter need --audit-destination file")
            return None
        if parsed.audit_path is None:
            raise ValueError("--audit-destination file needs --audit-path")
        return cls(parsed.audit_path, parsed.audit_filter or parse_filter({}), parsed.log_rotate)


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `AuditOptions`."""
    parser.add_argument("--audit-destination", choices=("file",), help="turn the audit log on (default: off)")
    parser.add_argument("--audit-path", type=Path, metavar="PATH", help="the file of the audit log")
    parser.add_argument(
        "--audit-filter",
        type=argument(_parse_filter_option),
        metavar="JSON",
        help='which events to write, a query on them, for example {"atype": "authCheck"} (default: all)',
    )


class AuditLog:
    """Appends events to a file that belongs to its owner alone. Several processes may append to the same file.

    Attributes:
        file: the file.

    Raises:
        OSError: the file cannot be opened.
    """

    def __init__(self, options: AuditOptions) -> None:
        self._is_wanted = options.is_wanted
        self.file = LogFile(options.path, options.rotation, _PRIVATE)

    def write(self, kind: str, parameters: dict[str, Any], result: int, participants: dict[str, Any]) -> None:
        """Write an event, if it is wanted.

        Args:
            kind: its ``atype``.
            parameters: its ``param``.
            result: 0, or the code of the error with which it failed.
            participants: ``uuid``, ``local``, ``remote``, ``users`` and ``roles``.
        """
        event = {
            "atype": kind,
            "ts": datetime.now(UTC),
            **participants,
            "param": parameters,
            "result": result,
        }
        if not self._is_wanted(event):
            return
        line = json_util.dumps(event, separators=(",", ":")) + "\n"
        try:
            with log_signals_held_back():
                self.file.write(line)
        except OSError as error:
            logger.error("Could not write to the audit log", error=str(error))


def opened_audit_log(parser: argparse.ArgumentParser, parsed: argparse.Namespace) -> AuditLog | None:
    """The audit log of a command line; None if nothing is to be audited.

    Raises:
        SystemExit: as `AuditOptions.of` and `AuditLog`; the operator has been told why.
    """
    try:
        options = AuditOptions.of(parsed)
        return None if options is None else AuditLog(options)
    except ValueError as error:
        parser.error(str(error))
    except OSError as error:
        parser.exit(explain_start_error(parser.prog, error))


def _parse_filter_option(text: str) -> Predicate:
    try:
        query = json_util.loads(text)
    except (json.JSONDecodeError, TypeError, ValueError) as error:
        raise ValueError(f"the audit filter is not JSON: {error}") from error
    if not isinstance(query, dict):
        raise ValueError("the audit filter is not a document")
    return parse_filter(query)
