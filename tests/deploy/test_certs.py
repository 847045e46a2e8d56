"""`shardwright certs`: certificates that daemons and clients accept, with and without keys that travel."""

import ssl
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE

import pytest
from cryptography import x509

from shardwright.deploy.authority import alternative_names
from shardwright.deploy.certs import read_certificate
from shardwright.deploy.cli import main
from shardwright.wire.tls.process_tls import ProcessTls
from shardwright.wire.tls.settings import TlsMode, TlsSettings

HOST = "a.example.net"


@pytest.fixture(autouse=True)
def _in_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def certs(*words: str) -> int:
    return main(["certs", *words])


def shake_hands(server_file: str, client_file: str) -> None:
    """Connect a client with the files of one to a daemon with the files of another."""
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile="authority/authorities.pem")
    client = ssl.create_default_context(cafile="authority/ca.pem")
    server.load_cert_chain(server_file)
    client.load_cert_chain(client_file)
    server.verify_mode = ssl.CERT_REQUIRED
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=HOST),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert all(end.getpeercert() for end in ends)


def test_hosts_and_users_get_certificates(capsys: pytest.CaptureFixture[str]) -> None:
    assert certs("host", HOST, "10.0.0.1") == 0
    assert certs("user", "reports") == 0
    printed = capsys.readouterr().out
    assert f"for {HOST}, localhost, 10.0.0.1, 127.0.0.1, ::1" in printed
    assert 'createUser({ user: "CN=reports,OU=clients,O=shardwright"' in printed
    shake_hands(f"{HOST}.pem", "reports.pem")
    tls = ProcessTls()
    tls.use(TlsSettings(TlsMode.REQUIRE, certificate_key_file=Path(f"{HOST}.pem"), ca_file=Path("authority/ca.pem")))
    assert tls.organization == (("O", "shardwright"), ("OU", "servers"))
    assert {S_IMODE(path.stat().st_mode) for path in Path().rglob("*.pem")} == {0o600}


def test_a_request_is_signed_while_the_key_stays() -> None:
    assert certs("request", HOST, "10.0.0.1") == 0
    assert certs("request", "reports", "--user", "--key", "k", "--out", "r.csr") == 0
    assert certs("sign", f"{HOST}.csr") == 0
    assert certs("sign", "r.csr", "--user", "--out", "r.crt") == 0
    assert "PRIVATE" not in Path(f"{HOST}.crt").read_text() + Path(f"{HOST}.csr").read_text()
    for certificate, key, both in ((f"{HOST}.crt", f"{HOST}.key", "host.pem"), ("r.crt", "k", "user.pem")):
        Path(both).write_text(Path(certificate).read_text() + Path(key).read_text())
    shake_hands("host.pem", "user.pem")
    assert "10.0.0.1" in alternative_names(read_certificate(Path("host.pem")).extensions)


def test_a_request_cannot_choose_its_unit(capsys: pytest.CaptureFixture[str]) -> None:
    """Otherwise a user could become a member of the cluster."""
    certs("request", "reports", "--user")
    assert certs("sign", "reports.csr") == 1
    certs("request", HOST)
    assert certs("sign", f"{HOST}.csr", "--user") == 1
    assert "is the request of a host: omit --user" in capsys.readouterr().err
    certs("sign", "reports.csr", "--user")
    (unit,) = read_certificate(Path("reports.crt")).subject.get_attributes_for_oid(
        x509.NameOID.ORGANIZATIONAL_UNIT_NAME
    )
    assert unit.value == "clients"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("host", HOST, "--out", "file"), "file exists: remove it first"),
        (("sign", "file"), "file is not a request"),
        (("sign", "absent"), "cannot use absent: No such file"),
        (("show", "file"), "file has no certificate"),
        (("request", "x", "y", "--user"), "a user's certificate has no host names"),
        (("authority", "--authority", "file/under"), "cannot use the authority in file/under"),
    ],
)
def test_mistakes_are_explained(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("nothing")
    assert certs(*words) == 1
    assert message in capsys.readouterr().err
    assert Path("file").read_text() == "nothing"


def test_the_authority_stays_the_same() -> None:
    certs("authority")
    before = Path("authority/ca.pem").read_text()
    certs("authority")
    assert Path("authority/ca.pem").read_text() == before
    assert S_IMODE(Path("authority").stat().st_mode) == 0o700
