"""Warns in the log that the certificate of this server expires: at the start, and then daily, as a mongod does."""

from datetime import UTC, datetime, timedelta
from typing import Final

import trio

from shardwright.wire.logger import get_logger
from shardwright.wire.tls.process_tls import TLS

logger = get_logger("daemon.tls")

_PAUSE_SECONDS: Final = 86_400


async def watch_expiry() -> None:
    """Warn until cancelled, while `TlsSettings.expiration_warning_days` says so."""
    while True:
        warn_of_expiry(datetime.now(UTC))
        await trio.sleep(_PAUSE_SECONDS)


def warn_of_expiry(now: datetime) -> None:
    """Warn if the certificate in use has expired, or does so soon.

    Args:
        now: the present time.
    """
    days = TLS.settings.expiration_warning_days
    if not days or TLS.expires_at is None:
        return
    left = TLS.expires_at - now
    if left < timedelta(0):
        logger.warning("The certificate of this server has expired", error=f"it was valid until {TLS.expires_at}")
    elif left < timedelta(days=days):
        logger.warning("The certificate of this server expires soon", days=left.days)
