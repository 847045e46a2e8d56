"""The daemon's certificates: their options, their rotation, and the warnings before they expire."""

import argparse
import signal
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Final

import trio

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.tls import ProcessTls, TlsConfigurationError, TlsSettings

logger = get_logger("daemon.tls")

ROTATE_CERTIFICATES: Final = "rotateCertificates"
ROTATION_SIGNAL: Final = signal.SIGHUP
"""Signal that makes a daemon with TLS reload its certificates; without TLS it ends the process."""

_SIGNAL: Final = "signal"


def rotate_certificates(tls: ProcessTls, message: str | None = None) -> None:
    """Reload the certificate files.

    Args:
        message: the requester's text for the log.

    Raises:
        CommandError: InvalidSSLConfiguration, a file cannot be used; the former certificates stay.
    """
    try:
        tls.rotate()
    except TlsConfigurationError as error:
        logger.error("Could not rotate the certificates; the old ones stay in use", error=str(error))
        raise CommandError(ErrorCode.InvalidSSLConfiguration, str(error)) from error
    logger.info("Rotated the certificates", asked_for=message or "")


class RotationSignals:
    """The signals that request a rotation; signals during a rotation cause one more afterwards."""

    def __init__(self) -> None:
        self._received = trio.Event()

    def note(self) -> None:
        """Record a signal."""
        self._received.set()

    async def obey(self, rotate: Callable[[str], Awaitable[None]]) -> None:
        """Call `rotate`, for daemon and mongod, at each signal until cancelled; failures are logged."""
        while True:
            await self._received.wait()
            self._received = trio.Event()
            with suppress(CommandError):
                await rotate(_SIGNAL)


_PAUSE_SECONDS: Final = 86_400


async def watch_expiry(tls: ProcessTls) -> None:
    """Warn once a day until cancelled, within `TlsSettings.expiration_warning_days` of the expiry."""
    while True:
        warn_of_expiry(tls, datetime.now(UTC))
        await trio.sleep(_PAUSE_SECONDS)


def warn_of_expiry(tls: ProcessTls, now: datetime) -> None:
    """Warn if the certificate in use has expired, or expires soon."""
    days = tls.settings.expiration_warning_days
    if not days or tls.expires_at is None:
        return
    left = tls.expires_at - now
    if left < timedelta(0):
        logger.warning("The certificate of this server has expired", error=f"it was valid until {tls.expires_at}")
    elif left < timedelta(days=days):
        logger.warning("The certificate of this server expires soon", days=left.days)


def tls_settings(parsed: argparse.Namespace, *, secured_sockets: frozenset[str]) -> TlsSettings:
    """Read the TLS settings from the options; for `secured_sockets` see `TlsSettings`."""
    return TlsSettings(
        mode=parsed.tls_mode,
        certificate_key_file=parsed.tls_certificate_key_file,
        certificate_key_password_file=parsed.tls_certificate_key_file_password_file,
        ca_file=parsed.tls_ca_file,
        crl_file=parsed.tls_crl_file,
        cluster_file=parsed.tls_cluster_file,
        cluster_password_file=parsed.tls_cluster_password_file,
        cluster_ca_file=parsed.tls_cluster_ca_file,
        disabled_protocols=parsed.tls_disabled_protocols,
        allows_connections_without_certificates=parsed.tls_allow_connections_without_certificates,
        allows_invalid_certificates=parsed.tls_allow_invalid_certificates,
        allows_invalid_hostnames=parsed.tls_allow_invalid_hostnames,
        members_too=parsed.tls_x509_cluster_auth_dn_override,
        expiration_warning_days=parsed.tls_x509_expiration_warning_threshold_days,
        secured_sockets=secured_sockets,
    )
