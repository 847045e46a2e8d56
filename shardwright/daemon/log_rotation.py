"""Rotation of a daemon's logs by ``logRotate``, which all daemons have, and at SIGUSR1.

As in MongoDB there are two: ``server``, the daemon's own log, and ``audit``, if there is an audit log.
"""

import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from shardwright.daemon.log_file import LogFile
from shardwright.daemon.logs import reopen_log, rotate_log
from shardwright.daemon.signal_mask import log_signals_masked
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger

FAILED: Final = "Log rotation failed due to one or more errors"
SERVER: Final = "server"
AUDIT: Final = "audit"

_logger: Final = get_logger("daemon.logs")


class DaemonLogs:
    """The logs of this process, with or without an audit log."""

    def __init__(self, audit: LogFile | None = None) -> None:
        self._audit = audit

    @property
    def kinds(self) -> tuple[str, ...]:
        """The existing logs."""
        return (SERVER,) if self._audit is None else (SERVER, AUDIT)

    def rotate(self, kind: str | None = None) -> None:
        """Rotate the logs according to ``--log-rotate``. A failure of one does not prevent the others.

        Args:
            kind: one of `kinds`; None for all.

        Raises:
            OSError: logging continues in the old file; the daemon's own log has the reason.
        """
        suffix = datetime.now(UTC).strftime("%Y-%m-%dT%H-%M-%S")
        _logger.info("Log rotation initiated", suffix=suffix, kind=kind)
        self._change({SERVER: lambda: rotate_log(suffix), AUDIT: lambda: self._change_audit(suffix)}, kind)

    def reopen(self) -> None:
        """Continue in the files that another process created in a rotation; errors as `rotate`."""
        self._change({SERVER: reopen_log, AUDIT: self._change_audit})

    def rotate_for_client(self, kind: str | None = None) -> None:
        """Call `rotate` at the request of a client.

        Args:
            kind: the client's unchecked argument; None for all.

        Raises:
            CommandError: NoSuchKey, there is no such log; FileRenameFailed, as `rotate`.
        """
        if kind is not None and kind not in self.kinds:
            raise CommandError(ErrorCode.NoSuchKey, FAILED)
        try:
            self.rotate(kind)
        except OSError as error:
            raise CommandError(ErrorCode.FileRenameFailed, FAILED) from error

    def _change(self, changes: Mapping[str, Callable[[], None]], kind: str | None = None) -> None:
        failures = []
        with log_signals_masked():
            for each in self.kinds if kind is None else (kind,):
                try:
                    changes[each]()
                except OSError as error:
                    failures.append(error)
        if failures:
            raise failures[0]

    def _change_audit(self, suffix: str | None = None) -> None:
        """Rotate the audit log, or reopen it if there is no suffix."""
        assert self._audit is not None
        try:
            if suffix is None:
                self._audit.reopen()
            else:
                self._audit.rotate(suffix)
        except OSError as error:
            _logger.error("Could not rotate the audit log", error=str(error))
            raise
        _logger.info("Audit log opened", pid=os.getpid())
