"""`shardwright certs`: certificates that daemons and clients accept, with and without keys that travel."""

import json
import re
import ssl
import warnings
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding

from shardwright.deploy.authority import alternative_names, read_certificate
from shardwright.deploy.cli import main
from shardwright.wire.tls import ProcessTls, TlsMode, TlsSettings
from tests.certificates import Authority, Issued, key_of, self_signed

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
    tls = ProcessTls(
        TlsSettings(TlsMode.REQUIRE, certificate_key_file=Path(f"{HOST}.pem"), ca_file=Path("authority/ca.pem"))
    )
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
        (("host", HOST, f"{'a' * 64}.net"), "is not a host name of letters, digits, - and dots"),
        (("host", f"{'a' * 40}.{'b' * 40}"), "is longer than the 64 bytes of a certificate's common name"),
        (
            ("host", "ä.net"),
            "'ä.net' is not a host name of letters, digits, - and dots (write an international name as",
        ),
        (("host", HOST, "b;c"), "'b;c' is not a host name"),
        (("host", "*.example.net"), "'*.example.net' is not the name of one host: give it as an ALIAS"),
        (("host", "../up"), "'../up' is not a host name"),
        (("request", "ä.net"), "'ä.net' is not a host name"),
        (("user", "a" * 65), "is longer than the 64 bytes"),
        (("user", "ä" * 33), "is longer than the 64 bytes"),
        (("user", ""), "'' is not a name of printable characters"),
        (("user", "a\x1b[2J"), "is not a name of printable characters"),
        (("user", "team/reports"), "team/reports cannot be the name of a file: give --out"),
        (("request", "team/reports", "--user"), "team/reports cannot be the name of a file: give --key"),
        (("user", "reports", "--out", "absent/r.pem"), "cannot write absent/r.pem: No such file or directory"),
        (("show", "."), "cannot read .: Is a directory"),
        (("sign", "."), "cannot use .: Is a directory"),
    ],
)
def test_mistakes_are_explained(words: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path("file").write_text("nothing")
    assert certs(*words) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert Path("file").read_text() == "nothing"


def test_the_authority_stays_the_same() -> None:
    certs("authority")
    before = Path("authority/ca.pem").read_text()
    certs("authority")
    assert Path("authority/ca.pem").read_text() == before
    assert S_IMODE(Path("authority").stat().st_mode) == 0o700


def test_names_of_users_are_shown_as_mongosh_reads_them(capsys: pytest.CaptureFixture[str]) -> None:
    assert certs("user", 'Jürgen "J", ops', "--out", "j.pem") == 0
    (shown,) = re.findall(r"user: (.*), roles", capsys.readouterr().out)
    assert json.loads(shown) == r"CN=Jürgen \"J\"\, ops,OU=clients,O=shardwright"


def test_hosts_may_have_wildcards_and_addresses_as_aliases() -> None:
    assert certs("host", HOST, "*.db.example.net", "FD00::0:1") == 0
    names = alternative_names(read_certificate(Path(f"{HOST}.pem")).extensions)
    assert {"*.db.example.net", "fd00::1"} < set(names)


def csr(common_name: str, host: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    """A request that `shardwright certs request` would not make."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name, _validate=False)])
    names = x509.SubjectAlternativeName([x509.DNSName(host)])
    builder = x509.CertificateSigningRequestBuilder(name).add_extension(names, critical=False)
    return builder.sign(key, SHA256()).public_bytes(Encoding.PEM)


@pytest.mark.parametrize(
    ("common_name", "host", "curve", "message"),
    [
        ("a" * 65, "a.net", ec.SECP256R1(), "is longer than the 64 bytes of a certificate's common name"),
        ("\x1b[2J", "a.net", ec.SECP256R1(), r"'\x1b[2J' is not a name of printable characters"),
        ("a.net", "a\x1b[2J", ec.SECP256R1(), r"'a\x1b[2J' is not a host name"),
        ("a.net", "a.net", ec.SECP192R1(), "it is not signed with an elliptic curve key of at least 256 bits"),
    ],
)
def test_a_request_is_checked_before_it_is_signed(
    common_name: str, host: str, curve: ec.EllipticCurve, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("r.csr").write_bytes(csr(common_name, host, ec.generate_private_key(curve)))
    assert certs("sign", "r.csr") == 1
    assert message in capsys.readouterr().err
    assert not Path("r.crt").exists()


def write_authority(changes: Mapping[str, Any]) -> Issued:
    """Write the servers' authority of another maker, and return it; the users' authority stays."""
    certs("authority")
    found = self_signed(Path("authority/ca.pem"), **changes)
    Path("authority/ca-key.pem").write_bytes(key_of(found))
    return found


def test_certificates_do_not_outlive_their_authority() -> None:
    authority = write_authority({"days": (-1, 100)})
    certs("host", HOST)
    last = read_certificate(Path(f"{HOST}.pem")).not_valid_after_utc
    assert last == authority.certificate.not_valid_after_utc
    certs("request", "reports")
    certs("sign", "reports.csr")
    assert read_certificate(Path("reports.crt")).not_valid_after_utc == last


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"days": (-9, -2)}, "the authority in authority/ca.pem is valid from "),
        ({"days": (2, 9)}, "and not now: check the clock, or replace it together with everything that it has signed"),
        ({"is_authority": False}, "the certificate in authority/ca.pem is not an authority's: it may not sign"),
        ({"signs": False}, "the certificate in authority/ca.pem is not an authority's: it may not sign"),
    ],
)
def test_an_authority_that_cannot_sign_is_refused(
    changes: dict[str, Any], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_authority(changes)
    assert certs("host", HOST) == 1
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not Path(f"{HOST}.pem").exists()


def test_an_authority_needs_its_own_key(capsys: pytest.CaptureFixture[str]) -> None:
    certs("authority")
    Path("authority/ca-key.pem").write_bytes(Path("authority/clients-ca-key.pem").read_bytes())
    assert certs("host", HOST) == 1
    message = "the key in authority/ca-key.pem does not fit the certificate in authority/ca.pem: put the right one back"
    assert message in capsys.readouterr().err


def test_an_authority_may_be_listed_among_others() -> None:
    """While one replaces another, processes trust both."""
    certs("authority")
    path = Path("authority/ca.pem")
    own = read_certificate(path)
    path.write_bytes(Authority(Path(), "newer").path.read_bytes() + path.read_bytes())
    certs("host", HOST)
    read_certificate(Path(f"{HOST}.pem")).verify_directly_issued_by(own)


def test_an_encrypted_key_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    certs("authority")
    encrypted = Authority(Path()).issue("encrypted.pem", password=b"secret")
    Path("authority/ca-key.pem").write_bytes(key_of(encrypted))
    assert certs("host", HOST) == 1
    assert "the key in authority/ca-key.pem is encrypted: put a decrypted one there" in capsys.readouterr().err


def test_an_authority_that_lost_a_file_is_not_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    certs("authority")
    Path("authority/ca-key.pem").unlink()
    before = Path("authority/ca.pem").read_text()
    assert certs("authority") == 1
    assert "the authorities in authority lack ca-key.pem: put a copy back" in capsys.readouterr().err
    assert Path("authority/ca.pem").read_text() == before


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b"\x55\x04\x0b\x0c", b"\x55\x04\x0b\x1d"),
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x43"),
    ],
    ids=["the type of a name", "the version"],
)
def test_a_damaged_certificate_is_explained(before: bytes, after: bytes, capsys: pytest.CaptureFixture[str]) -> None:
    """Its parts are parsed only when they are read, with errors of many types."""
    certs("authority")
    path = Path("authority/ca.pem")
    encoded = x509.load_pem_x509_certificate(path.read_bytes()).public_bytes(Encoding.DER)
    path.write_text(ssl.DER_cert_to_PEM_cert(encoded.replace(before, after)))
    for words in (("show", str(path)), ("host", HOST)):
        assert certs(*words) == 1
        assert "authority/ca.pem has no certificate: " in capsys.readouterr().err
