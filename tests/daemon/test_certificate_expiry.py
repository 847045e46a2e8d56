"""Warnings that the certificate of this server expires."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from shardwright.daemon.certificates import warn_of_expiry
from shardwright.wire.tls import ProcessTls, TlsMode, TlsSettings
from tests.certificates import Authority


@pytest.mark.parametrize(
    ("threshold", "days", "warning"),
    [
        (30, 0, None),
        (30, 75, "The certificate of this server expires soon"),
        (30, 101, "The certificate of this server has expired"),
        (10, 75, None),
        (0, 101, None),
    ],
)
def test_the_log_warns_in_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, threshold: int, days: int, warning: str | None
) -> None:
    authority = Authority(tmp_path)
    issued = authority.issue("server.pem", days=(-1, 100))
    settings = TlsSettings(TlsMode.REQUIRE, certificate_key_file=issued.path, ca_file=authority.path)
    tls = ProcessTls(replace(settings, expiration_warning_days=threshold))
    warn_of_expiry(tls, datetime.now(UTC) + timedelta(days=days))
    assert [record.message for record in caplog.records] == ([] if warning is None else [warning])
