"""An authority that signs the certificates of a cluster, and requests to it from hosts that keep their keys."""

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
class CertificateRequest:
    """What a host or user asks an authority to sign.

    Attributes:
        common_name: of the host or user.
        hosts: names and addresses of the host; empty for a user.
        key: the public key.
    """

    common_name: str
    hosts: tuple[str, ...]
    key: ec.EllipticCurvePublicKey

    @classmethod
    def new(cls, common_name: str, hosts: tuple[str, ...]) -> tuple[str, str]:
        """A new private key and the request for it, both PEM."""
        key = _new_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = x509.CertificateSigningRequestBuilder(subject)
        if hosts:
            builder = builder.add_extension(_alternative_names(hosts), critical=False)
        return _text(key), builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    @classmethod
    def parse(cls, encoded: bytes) -> Self:
        """The request in a file.

        Raises:
            ValueError: it is not a request that `new` makes, or its signature is wrong.
        """
        request = x509.load_pem_x509_csr(encoded)
        key = request.public_key()
        if not request.is_signature_valid or not isinstance(key, ec.EllipticCurvePublicKey):
            raise ValueError("it is not signed with an elliptic curve key")
        names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        if len(names) != 1:
            raise ValueError("its subject has no single common name")
        return cls(str(names[0].value), alternative_names(request.extensions), key)


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
            title: the beginning of its name, which ends with the machine's name.
        """
        key = _new_key()
        name = _name(_UNIT, f"{title} of {socket.gethostname()}"[:_NAME_CHARACTERS_MAX])
        builder = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, key_file: Path, file: Path) -> Self:
        """The authority in two files.

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
        return self._certificate(key.public_key(), unit, common_name, hosts) + _text(key)

    def sign(self, request: CertificateRequest, unit: str) -> str:
        """The certificate for a request, PEM; the key stays where it is.

        Args:
            request: has the name, the hosts and the public key.
            unit: of the certificate. Never the request's own: it decides who counts as a member of the cluster.
        """
        return self._certificate(request.key, unit, request.common_name, request.hosts)

    def _certificate(self, key: ec.EllipticCurvePublicKey, unit: str, common_name: str, hosts: tuple[str, ...]) -> str:
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        issuer_key = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = (
            _builder(_name(unit, common_name), self.certificate.subject, key)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(issuer_key, critical=False)
        )
        if hosts:
            builder = builder.add_extension(_alternative_names(hosts), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
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


def alternative_names(extensions: x509.Extensions) -> tuple[str, ...]:
    """The hosts that a certificate or request is for."""
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return ()
    return (*names.get_values_for_type(x509.DNSName), *map(str, names.get_values_for_type(x509.IPAddress)))


def _alternative_names(hosts: tuple[str, ...]) -> x509.SubjectAlternativeName:
    return x509.SubjectAlternativeName([_general_name(host) for host in hosts])


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _text(key: ec.EllipticCurvePrivateKey) -> str:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()).decode()
