"""The certificates of a local cluster."""

import ssl
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from shardwright.deploy.errors import DeployError
from shardwright.deploy.tls_files import TlsFiles
from shardwright.wire.tls.process_tls import ProcessTls
from shardwright.wire.tls.settings import TlsMode, TlsSettings


def test_daemons_take_them(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    tls = ProcessTls()
    tls.use(TlsSettings(TlsMode.REQUIRE, certificate_key_file=files.server_file, ca_file=files.ca_file))
    assert tls.organization == (("O", "shardwright"), ("OU", "servers"))


def test_they_hold_up_to_strict_clients(tmp_path: Path) -> None:
    """The default of Python 3.13: extensions have to be there and to agree."""
    files = TlsFiles(tmp_path / "tls")
    files.create()
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=files.authorities_file)
    client = ssl.create_default_context(cafile=files.ca_file)
    server.load_cert_chain(files.server_file)
    client.load_cert_chain(files.client_file)
    server.verify_mode = ssl.CERT_REQUIRED
    for context in (server, client):
        context.verify_flags |= ssl.VERIFY_X509_STRICT
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname="127.0.0.1"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(3):
        for end in ends:
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
    assert all(end.getpeercert() for end in ends)


def test_files_are_private(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    modes = {path.name: S_IMODE(path.stat().st_mode) for path in files.directory.iterdir()}
    authorities = ("ca.pem", "ca-key.pem", "clients-ca.pem", "clients-ca-key.pem", "authorities.pem")
    assert modes == dict.fromkeys((*authorities, "server.pem", "member.pem", "client.pem"), 0o600)
    assert S_IMODE(files.directory.stat().st_mode) == 0o700


def test_what_is_missing_is_made_by_the_same_authority(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    authority, server, client = (path.read_bytes() for path in (files.ca_file, files.server_file, files.client_file))
    files.server_file.unlink()
    files.create()
    assert (files.ca_file.read_bytes(), files.client_file.read_bytes()) == (authority, client)
    renewed = files.server_file.read_bytes()
    assert renewed != server
    x509.load_pem_x509_certificate(renewed).verify_directly_issued_by(x509.load_pem_x509_certificate(authority))


def certificate_in(path: Path) -> x509.Certificate:
    return x509.load_pem_x509_certificate(path.read_bytes())


def test_new_authorities_sign_everything_again(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    (files.directory / "ca-key.pem").unlink()
    files.create()
    authority, of_clients = certificate_in(files.ca_file), certificate_in(files.clients_ca_file)
    for path in (files.server_file, files.member_file):
        certificate_in(path).verify_directly_issued_by(authority)
    certificate_in(files.client_file).verify_directly_issued_by(of_clients)
    both = x509.load_pem_x509_certificates(files.authorities_file.read_bytes())
    assert both == [authority, of_clients]


def test_one_authority_is_enough_for_a_directory_that_has_only_one(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    for path in (files.directory / "clients-ca-key.pem", files.clients_ca_file, files.authorities_file):
        path.unlink()
    files.client_file.unlink()
    files.create()
    certificate_in(files.client_file).verify_directly_issued_by(certificate_in(files.ca_file))
    assert not files.clients_ca_file.exists()
    assert "--tls-cluster-ca-file" not in files.daemon_words()


def test_clients_are_not_taken_for_servers(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    units = {
        path.name: x509.load_pem_x509_certificate(path.read_bytes())
        .subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)[0]
        .value
        for path in (files.server_file, files.member_file, files.client_file)
    }
    assert units == {"server.pem": "servers", "member.pem": "servers", "client.pem": "clients"}


def test_a_broken_key_is_explained(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    (files.directory / "ca-key.pem").write_text("not a key")
    with pytest.raises(DeployError, match="cannot create the certificates in"):
        files.create()
