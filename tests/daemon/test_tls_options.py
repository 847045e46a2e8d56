"""The options for TLS: what a mongod refuses, with its words, and files that cannot be used."""

import ssl
from pathlib import Path

import pytest

from shardwright.daemon.certificates import tls_settings
from shardwright.daemon.configuration.configuration import configuration
from shardwright.daemon.configuration.connection_options import TLS_OPTIONS
from shardwright.daemon.configuration.option import Program
from shardwright.wire.tls import ProcessTls, TlsConfigurationError, TlsMode
from tests.certificates import Authority

PROGRAM = Program("toy", "A daemon for tests.", TLS_OPTIONS)
SERVER = ("--tls-mode", "allow", "--tls-certificate-key-file", "server.pem")
AUTHORITY = ("--tls-ca-file", "authority.pem")


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with certificates, which is the current one."""
    authority = Authority(tmp_path)
    authority.issue("server.pem")
    authority.issue("other.pem")
    authority.issue("expired.pem", days=(-10, -1))
    authority.issue("later.pem", days=(1, 10))
    (tmp_path / "text.pem").write_text("text")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def used(*words: str, secured_sockets: frozenset[str] = frozenset()) -> ProcessTls:
    """The TLS of a process with these options."""
    return ProcessTls(tls_settings(configuration(PROGRAM, words, {}).values, secured_sockets=secured_sockets))


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--tls-mode", "require"), "need tlsCertificateKeyFile or certificateSelector when TLS is enabled"),
        (AUTHORITY, "need to enable TLS via the sslMode/tlsMode flag when using TLS configuration parameters"),
        (SERVER, "need tlsCAFile to recognise other servers"),
        ((*SERVER, *AUTHORITY, "--tls-disabled-protocols", "TLS1_2,TLS1_3"), "all protocols are disabled"),
        ((*SERVER, "--tls-crl-file", "authority.pem"), "need tlsCAFile with tlsCRLFile"),
        ((*SERVER, "--tls-ca-file", "text.pem"), r"text\.pem: no certificates of authorities"),
        ((*SERVER, "--tls-ca-file", "none.pem"), r"none\.pem: no certificates of authorities: No such file"),
        ((*SERVER, *AUTHORITY, "--tls-crl-file", "text.pem"), r"text\.pem: no revocation list"),
        ((*SERVER, *AUTHORITY, "--tls-cluster-file", "text.pem"), r"text\.pem: no certificate with its private key"),
        ((*SERVER[:3], "expired.pem", *AUTHORITY), "is expired or not yet valid"),
        ((*SERVER[:3], "later.pem", *AUTHORITY), "is expired or not yet valid"),
        ((*SERVER[:3], "authority.pem", *AUTHORITY), r"authority\.pem: no certificate with its private key"),
        ((*SERVER[:3], "none.pem", *AUTHORITY), r"none\.pem: no certificate: .*No such file"),
    ],
)
def test_what_cannot_be_used_is_explained(words: tuple[str, ...], reason: str) -> None:
    with pytest.raises(TlsConfigurationError, match=reason):
        used(*words)


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(("mode", "dials"), [("allow", False), ("prefer", True), ("require", True)])
def test_a_mode_says_what_connections_to_other_servers_use(mode: str, dials: bool) -> None:
    tls = used("--tls-mode", mode, *SERVER[2:], *AUTHORITY)
    assert tls.settings.mode is TlsMode(mode)
    assert tls.accepting is not None
    assert (tls.dialing is not None) == dials


def test_a_secured_socket_needs_tls() -> None:
    with pytest.raises(TlsConfigurationError, match="need to enable TLS"):
        used(secured_sockets=frozenset({"/mongod.sock"}))


def test_an_encrypted_key_is_refused_without_asking_for_its_password(files: Path) -> None:
    Authority(files).issue("server.pem", password=b"secret")
    with pytest.raises(TlsConfigurationError, match="the private key is encrypted"):
        used(*SERVER, "--tls-ca-file", "authority.pem")


def test_encrypted_keys_have_their_passwords_in_files(files: Path) -> None:
    authority = Authority(files)
    authority.issue("server.pem", password=b"of the server")
    authority.issue("cluster.pem", password=b"of the cluster")
    words = [*SERVER, *AUTHORITY, "--tls-cluster-file", "cluster.pem"]
    for name, password in (("server", "of the server\n"), ("cluster", "of the cluster")):
        (files / name).write_text(password)
        (files / name).chmod(0o600)
    words += ["--tls-certificate-key-file-password-file", "server", "--tls-cluster-password-file"]
    tls = used(*words, "cluster")
    tls.rotate()
    assert tls.accepting is not None
    with pytest.raises(TlsConfigurationError, match=r"cluster\.pem: no certificate with its private key"):
        used(*words, "server")
    (files / "cluster").chmod(0o640)
    with pytest.raises(TlsConfigurationError, match="permissions on cluster are too open"):
        used(*words, "cluster")


@pytest.mark.parametrize("text", ["TLS1_5", "TLS1_2,tls1_3", ""])
def test_unknown_protocols_are_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        used("--tls-disabled-protocols", text)
    assert "Unrecognized disabledProtocols" in capsys.readouterr().err


@pytest.mark.usefixtures("files")
@pytest.mark.parametrize(
    ("text", "lowest", "highest"),
    [
        ("none", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.MAXIMUM_SUPPORTED),
        ("TLS1_0,TLS1_1", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.MAXIMUM_SUPPORTED),
        ("TLS1_0,TLS1_2", ssl.TLSVersion.TLSv1_3, ssl.TLSVersion.MAXIMUM_SUPPORTED),
        ("TLS1_3", ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_2),
    ],
)
def test_protocols_are_disabled(text: str, lowest: ssl.TLSVersion, highest: ssl.TLSVersion) -> None:
    tls = used("--tls-mode", "require", *SERVER[2:], *AUTHORITY, "--tls-disabled-protocols", text)
    for context in (tls.accepting, tls.dialing, tls.dialing_locally):
        assert context is not None
        assert (context.minimum_version, context.maximum_version) == (lowest, highest)
