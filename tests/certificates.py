"""Certificates for tests, made when they run: an authority, and whatever it signs."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)
from cryptography.x509.oid import NameOID

from shardwright.deploy.authority import SIGNS_CERTIFICATES

ATTRIBUTES: Final = {
    "C": NameOID.COUNTRY_NAME,
    "CN": NameOID.COMMON_NAME,
    "DC": NameOID.DOMAIN_COMPONENT,
    "L": NameOID.LOCALITY_NAME,
    "O": NameOID.ORGANIZATION_NAME,
    "OU": NameOID.ORGANIZATIONAL_UNIT_NAME,
    "emailAddress": NameOID.EMAIL_ADDRESS,
}
LOCAL_HOSTS: Final = ("localhost", "127.0.0.1")


@dataclass(frozen=True)
class Issued:
    """A certificate and its key in one file."""

    path: Path
    certificate: x509.Certificate


class Authority:
    """Signs certificates and revokes them.

    Args:
        directory: for the files, which have the names of what is in them.
        name: of the authority.
    """

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._revoked: list[x509.RevokedCertificate] = []
        now = datetime.now(UTC)
        certificate = (
            x509.CertificateBuilder(self._name, self._name, self._key.public_key(), x509.random_serial_number())
            .not_valid_before(now - timedelta(days=1))
            .not_valid_after(now + timedelta(days=100))
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(certificate.public_bytes(Encoding.PEM))

    def issue(
        self,
        file: str,
        subject: Sequence[tuple[str, str]] = (("O", "tests"), ("CN", "server")),
        *,
        hosts: Sequence[str] = LOCAL_HOSTS,
        days: tuple[int, int] = (-1, 100),
        password: bytes | None = None,
    ) -> Issued:
        """A certificate with its key in ``file``.

        Args:
            file: its name.
            subject: pairs of short names and values, the most general first.
            hosts: names and addresses that it is for.
            days: the first and the last day on which it is valid, counted from today.
            password: with which the key is encrypted.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(ATTRIBUTES[attribute], value) for attribute, value in subject])
        now = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(self._name, name, key.public_key(), x509.random_serial_number())
            .not_valid_before(now + timedelta(days=days[0]))
            .not_valid_after(now + timedelta(days=days[1]))
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_general_name(host) for host in hosts]), False)
        certificate = builder.sign(self._key, hashes.SHA256())
        path = self._directory / file
        encryption = NoEncryption() if password is None else BestAvailableEncryption(password)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
        path.write_bytes(certificate.public_bytes(Encoding.PEM) + private)
        return Issued(path, certificate)

    def revoke(self, issued: Issued) -> None:
        """Put a certificate on the next revocation list."""
        number = issued.certificate.serial_number
        revoked = x509.RevokedCertificateBuilder(number, datetime.now(UTC) - timedelta(hours=1)).build()
        self._revoked.append(revoked)

    def revocation_list(self, file: str) -> Path:
        """The list of revoked certificates in ``file``."""
        now = datetime.now(UTC)
        builder = x509.CertificateRevocationListBuilder(
            self._name, now - timedelta(days=1), now + timedelta(days=10), revoked_certificates=self._revoked
        )
        path = self._directory / file
        path.write_bytes(builder.sign(self._key, hashes.SHA256()).public_bytes(Encoding.PEM))
        return path


def self_signed(
    path: Path, *, days: tuple[int, int] = (-1, 100), is_authority: bool = True, signs: bool = True
) -> Issued:
    """An authority's certificate in a file, with its key.

    Args:
        days: as for `Authority.issue`.
        is_authority: whether it says so.
        signs: whether its key usage allows it to sign certificates.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
    now = datetime.now(UTC)
    usage = dict.fromkeys(("content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False)
    usage |= dict.fromkeys(("encipher_only", "decipher_only", "crl_sign"), False)
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now + timedelta(days=days[0]))
        .not_valid_after(now + timedelta(days=days[1]))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage, digital_signature=not signs, key_cert_sign=signs), critical=True)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    path.write_bytes(certificate.public_bytes(Encoding.PEM) + private)
    return Issued(path, certificate)


def key_of(issued: Issued) -> bytes:
    """The private key in the file of a certificate, PEM."""
    text = issued.path.read_bytes()
    return text[text.rindex(b"-----BEGIN") :]


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)
