"""An authority that signs the certificates of a local cluster."""

import socket
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Final, Self

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shardwright.deploy.access import write_once

_ORGANIZATION: Final = "shardwright"
_UNIT: Final = "authority"
_NAME_CHARACTERS_MAX: Final = 64
_VALID: Final = timedelta(days=3650)
SIGNS_CERTIFICATES: Final = x509.KeyUsage(
    digital_signature=False,
    content_commitment=False,
    key_encipherment=False,
    data_encipherment=False,
    key_agreement=False,
    key_cert_sign=True,
    crl_sign=True,
    encipher_only=False,
    decipher_only=False,
)
"""What an authority uses its key for: certificates, and lists of those that it has revoked."""
_CLOCK_DIFFERENCE_MAX: Final = timedelta(days=1)


@dataclass(frozen=True)
class Authority:
    """Signs certificates; its files are PEM.

    Attributes:
        key: its private key.
        certificate: its own certificate, which it has signed itself.
    """

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, title: str) -> Self:
        """A new one.

        Args:
            title: the beginning of its name, which ends in that of this machine.
        """
        key = _new_key()
        name = _name(_UNIT, f"{title} of {socket.gethostname()}"[:_NAME_CHARACTERS_MAX])
        builder = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, key_file: Path, file: Path) -> Self:
        """That of two files.

        Raises:
            OSError: they cannot be read.
            ValueError: they do not hold what `save` writes.
            TypeError: the key is encrypted.
        """
        key = load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_file} is not a key that was made here")
        return cls(key, x509.load_pem_x509_certificate(file.read_bytes()))

    def save(self, key_file: Path, file: Path) -> None:
        """Write both files, the certificate last.

        Raises:
            OSError: they cannot be written.
        """
        write_once(key_file, _text(self.key))
        write_once(file, self.text)

    @property
    def text(self) -> str:
        """Its certificate."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, unit: str, common_name: str, hosts: tuple[str, ...]) -> str:
        """A new certificate with its key, PEM; of a server, which is also a client of others, if it has hosts."""
        key = _new_key()
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(_name(unit, common_name), self.certificate.subject, key)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(issuer_key, critical=False)
        )
        if hosts:
            names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
            builder = builder.add_extension(names, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return certificate.public_bytes(Encoding.PEM).decode() + _text(key)


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - _CLOCK_DIFFERENCE_MAX)
        .not_valid_after(now + _VALID)
    )


def _name(unit: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
