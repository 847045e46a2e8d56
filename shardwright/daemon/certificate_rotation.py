"""New certificates without a restart, at ``rotateCertificates`` or SIGHUP: for connections from now on.

A file that cannot be used leaves everything as it is.
"""

import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.tls.process_tls import TLS
from shardwright.wire.tls.settings import TlsConfigurationError

logger = get_logger("daemon.tls")

ROTATE_CERTIFICATES: Final = "rotateCertificates"
ROTATION_SIGNAL: Final = signal.SIGHUP
"""What a daemon with TLS takes for a request to read the files again; without TLS it ends the process."""

_SIGNAL: Final = "signal"


def rotate_certificates(message: str | None = None) -> None:
    """Read the files of certificates again.

    Args:
        message: for the log, from who asks for this.

    Raises:
        CommandError: InvalidSSLConfiguration, a file cannot be used; those in use stay.
    """
    try:
        TLS.rotate()
    except TlsConfigurationError as error:
        logger.error("Could not rotate the certificates; the old ones stay in use", error=str(error))
        raise CommandError(ErrorCode.InvalidSSLConfiguration, str(error)) from error
    logger.info("Rotated the certificates", asked_for=message or "")


class RotationSignals:
    """The signals that ask for a rotation: each is obeyed after the rotation that is going on, several at once."""

    def __init__(self) -> None:
        self._received = trio.Event()

    def note(self) -> None:
        """A signal has come."""
        self._received.set()

    async def obey(self, rotate: Callable[[str], Awaitable[None]]) -> None:
        """Rotate at each signal, until cancelled; there is nobody to tell of a failure, but it is in the log.

        Args:
            rotate: as `rotate_certificates`, also for the process behind a daemon.
        """
        while True:
            await self._received.wait()
            self._received = trio.Event()
            with suppress(CommandError):
                await rotate(_SIGNAL)
