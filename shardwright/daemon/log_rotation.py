"""Log rotation for the ``logRotate`` command, which all daemons have."""

from typing import Final

from shardwright.daemon.logs import rotate_logs
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

FAILED: Final = "Log rotation failed due to one or more errors"


def rotate_logs_for_client() -> None:
    """Rotate the log at the request of a client.

    Raises:
        CommandError: FileRenameFailed, it failed; the reason is in the log.
    """
    try:
        rotate_logs()
    except OSError as error:
        raise CommandError(ErrorCode.FileRenameFailed, FAILED) from error
