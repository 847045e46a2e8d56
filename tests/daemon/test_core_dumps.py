"""A daemon that has secrets in its memory leaves nothing of it behind when it crashes; others may be looked into."""

from pathlib import Path
from typing import Final

from tests.certificates import Authority
from tests.core_dumps import NOTHING, CoreDump
from tests.daemon.test_signals import running

USUAL: Final = ("sh", "-c", 'echo 0x33 >/proc/self/coredump_filter; exec "$0" "$@"')
"""Starts a program as a shell does, whatever the tests themselves were started by."""


def test_a_daemon_with_a_key_leaves_nothing(tmp_path: Path) -> None:
    key = tmp_path / "key"
    key.write_text("secretsecret")
    key.chmod(0o600)
    with running(tmp_path, "--key-file", str(key), prefix=USUAL) as daemon:
        assert CoreDump.of(daemon.process.pid) == NOTHING


def test_a_daemon_with_a_certificate_leaves_nothing(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    certificate = authority.issue("server.pem")
    tls = ("--tls-mode", "require", "--tls-certificate-key-file", str(certificate.path))
    with running(tmp_path, *tls, "--tls-ca-file", str(authority.path), prefix=USUAL) as daemon:
        assert CoreDump.of(daemon.process.pid) == NOTHING


def test_a_daemon_without_secrets_may_be_looked_into(tmp_path: Path) -> None:
    with running(tmp_path, prefix=USUAL) as daemon:
        assert CoreDump.of(daemon.process.pid).memory == 0x33
