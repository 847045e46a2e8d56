"""The file of the audit log, one JSON document a line, and the connection fields of its events.

Options and format are MongoDB Enterprise's.
"""

import argparse
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Self
from uuid import uuid4

from bson import json_util
from bson.binary import Binary

from shardwright.daemon.document_filter import Predicate, parse_filter
from shardwright.daemon.logs import LogFile, LogRotation
from shardwright.daemon.run import explain_start_error
from shardwright.daemon.signal_mask import log_signals_masked
from shardwright.wire.logger import get_logger
from shardwright.wire.transport.client_connection import ClientConnection

logger = get_logger("daemon.audit")


_PRIVATE: Final = 0o600


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """Destination and filter of the audit log.

    Attributes:
        is_wanted: whether an event is recorded.
        rotation: handling of the file in a rotation, as for the daemon's own log.
    """

    path: Path
    is_wanted: Predicate
    rotation: LogRotation = LogRotation.RENAME

    @classmethod
    def of(cls, parsed: argparse.Namespace) -> Self | None:
        """Read the options of a command line; None if auditing is off. ValueError if they do not fit together."""
        if parsed.audit_destination is None:
            if parsed.audit_path is not None or parsed.audit_filter is not None:
                raise ValueError("--audit-path and --audit-filter need --audit-destination file")
            return None
        if parsed.audit_path is None:
            raise ValueError("--audit-destination file needs --audit-path")
        return cls(parsed.audit_path, parsed.audit_filter or parse_filter({}), parsed.log_rotate)


class AuditLog:
    """A file of events for its owner alone, opened at once (OSError). Several processes may append to it."""

    def __init__(self, options: AuditOptions) -> None:
        self._is_wanted = options.is_wanted
        self.file = LogFile(options.path, options.rotation, _PRIVATE)

    def write(self, kind: str, parameters: dict[str, Any], result: int, participants: dict[str, Any]) -> None:
        """Write an event, if the filter selects it.

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
            with log_signals_masked():
                self.file.write(line)
        except OSError as error:
            logger.error("Could not write to the audit log", error=str(error))


def check_audit(parsed: argparse.Namespace) -> None:
    """Refuse options of the audit log that do not fit together; errors as `AuditOptions.of`."""
    AuditOptions.of(parsed)


def opened_audit_log(program: str, parsed: argparse.Namespace) -> AuditLog | None:
    """Open the audit log of a process; None if auditing is off.

    Args:
        parsed: its options, which `check_audit` has accepted.

    Raises:
        SystemExit: as `AuditLog`; the reason has been printed.
    """
    options = AuditOptions.of(parsed)
    try:
        return None if options is None else AuditLog(options)
    except OSError as error:
        raise SystemExit(explain_start_error(program, error)) from error


class AuditedConnections:
    """The open connections."""

    def __init__(self) -> None:
        self._described: dict[int, dict[str, Any]] = {}

    def note_opened(self, client: ClientConnection) -> None:
        """Record a new connection."""
        self._described[client.id] = {
            "uuid": Binary.from_uuid(uuid4()),
            "local": _own(client),
            "remote": _remote(client),
        }

    def note_closed(self, client: ClientConnection) -> None:
        """Remove a closed connection, after all its events have been written."""
        del self._described[client.id]

    def describe(self, client: ClientConnection) -> dict[str, Any]:
        """Return ``uuid``, the same in all events of a connection, and the addresses ``local`` and ``remote``."""
        return self._described[client.id]


def _own(client: ClientConnection) -> dict[str, Any]:
    own = client.stream.socket.getsockname()
    return {"ip": own[0], "port": own[1]} if isinstance(own, tuple) else {"unix": own}


def _remote(client: ClientConnection) -> dict[str, Any]:
    address = client.peer_address
    return {"unix": client.peer} if address is None else {"ip": address[0], "port": address[1]}
