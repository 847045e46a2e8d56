"""The certificates of a local cluster."""

import os
import ssl
from contextlib import suppress
from pathlib import Path
from stat import S_IMODE

import pytest
from cryptography import x509
from cryptography.x509.oid import NameOID

from shardwright.deploy.certs import TlsFiles
from shardwright.deploy.errors import DeployError
from shardwright.wire.tls import ProcessTls, TlsMode, TlsSettings


def test_daemons_take_them(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    tls = ProcessTls(TlsSettings(TlsMode.REQUIRE, certificate_key_file=files.server_file, ca_file=files.ca_file))
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


def test_authorities_on_a_volume_that_is_missing_are_not_replaced(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    volume = tmp_path / "volume"
    volume.mkdir()
    for path in (*files.directory.glob("*ca*.pem"), files.authorities_file):
        path.rename(volume / path.name)
        path.symlink_to(volume / path.name)
    server = files.server_file.read_bytes()
    files.create()
    volume.rename(tmp_path / "unmounted")
    with pytest.raises(DeployError, match="lack ca-key"):
        files.create()
    assert files.ca_file.is_symlink()
    assert files.server_file.read_bytes() == server


def test_new_authorities_sign_everything_again(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    for path in (*files.directory.glob("*ca*.pem"), files.authorities_file):
        path.unlink()
    files.create()
    authority, of_clients = certificate_in(files.ca_file), certificate_in(files.clients_ca_file)
    for path in (files.server_file, files.member_file):
        certificate_in(path).verify_directly_issued_by(authority)
    certificate_in(files.client_file).verify_directly_issued_by(of_clients)
    both = x509.load_pem_x509_certificates(files.authorities_file.read_bytes())
    assert both == [authority, of_clients]


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        (("ca.pem",), "ca.pem"),
        (("ca-key.pem",), "ca-key.pem"),
        (("clients-ca.pem",), "clients-ca.pem"),
        (("clients-ca-key.pem",), "clients-ca-key.pem"),
        (("ca.pem", "ca-key.pem"), "ca-key.pem and ca.pem"),
        (("clients-ca.pem", "clients-ca-key.pem"), "clients-ca-key.pem and clients-ca.pem"),
        (("ca.pem", "clients-ca.pem"), "ca.pem and clients-ca.pem"),
        (
            ("ca.pem", "ca-key.pem", "clients-ca.pem", "clients-ca-key.pem"),
            "ca-key.pem and ca.pem and clients-ca-key.pem and clients-ca.pem",
        ),
    ],
)
def test_an_authority_that_lost_a_file_is_not_replaced(tmp_path: Path, lost: tuple[str, ...], named: str) -> None:
    """The file may exist elsewhere, and everything that the authority has signed would be worthless without it."""
    files = TlsFiles(tmp_path / "tls")
    files.create()
    for name in lost:
        (files.directory / name).unlink()
    before = {path: path.read_bytes() for path in files.directory.iterdir()}
    for attempt in (files.create, files.authorities):
        with pytest.raises(DeployError) as caught:
            attempt()
        assert str(caught.value) == (
            f"the authorities in {files.directory} lack {named}: put a copy back; or, to have everything signed by new "
            f"authorities, remove {files.directory}"
        )
    assert {path: path.read_bytes() for path in files.directory.iterdir()} == before


def test_the_list_of_authorities_is_written_again(tmp_path: Path) -> None:
    files = TlsFiles(tmp_path / "tls")
    files.create()
    before = files.authorities_file.read_bytes()
    files.authorities_file.unlink()
    files.create()
    assert files.authorities_file.read_bytes() == before


def test_nothing_is_left_of_authorities_that_could_not_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = TlsFiles(tmp_path / "tls")
    replace = os.replace
    done: list[Path] = []

    def fill_disk(self: Path, target: Path) -> None:
        done.append(target)
        if target == files.ca_file:
            raise OSError(28, "No space left on device")
        replace(self, target)

    monkeypatch.setattr(Path, "replace", fill_disk)
    with pytest.raises(DeployError, match=r"cannot write .*/ca.pem: No space left"):
        files.create()
    assert len(done) == 4
    assert list(files.directory.iterdir()) == []
    monkeypatch.undo()
    files.create()


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
    with pytest.raises(DeployError, match=r"ca-key\.pem has no private key"):
        files.create()
