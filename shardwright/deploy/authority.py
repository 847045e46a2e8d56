"""The certificate authority of a cluster, and certificate requests from hosts that keep their own keys."""

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
"""Key usage of an authority: it signs certificates and revocation lists."""
_CLOCK_DIFFERENCE_MAX: Final = timedelta(days=1)


@dataclass(frozen=True)
class CertificateRequest:
    """A host's or user's request for a certificate.

    Attributes:
        hosts: names and addresses of the host; empty for a user.
    """

    common_name: str
    hosts: tuple[str, ...]
    key: ec.EllipticCurvePublicKey

    @classmethod
    def new(cls, common_name: str, hosts: tuple[str, ...]) -> tuple[str, str]:
        """Create a private key and the request for it, both PEM."""
        key = _new_key()
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
        builder = x509.CertificateSigningRequestBuilder(subject)
        if hosts:
            builder = builder.add_extension(_alternative_names(hosts), critical=False)
        return _text(key), builder.sign(key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()

    @classmethod
    def parse(cls, encoded: bytes) -> Self:
        """Parse the request in a file.

        Raises:
            ValueError: it is not a request as `new` makes them, or its signature is wrong.
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
    """A certificate authority with a self-signed certificate; its files are PEM."""

    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls, title: str) -> Self:
        """Create an authority.

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
        """Read the authority from two files.

        Raises:
            OSError: they cannot be read.
            ValueError: they were not written by `save`.
            TypeError: the key is encrypted.
        """
        key = load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_file} is not a key that was made here")
        return cls(key, x509.load_pem_x509_certificate(file.read_bytes()))

    def save(self, key_file: Path, file: Path) -> None:
        """Write both files, the certificate last."""
        write_once(key_file, _text(self.key))
        write_once(file, self.text)

    @property
    def text(self) -> str:
        """The authority's certificate as PEM."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, unit: str, common_name: str, hosts: tuple[str, ...]) -> str:
        """Issue a certificate with its key, PEM; with hosts it is valid for a server as well as a client."""
        key = _new_key()
        return self._certificate(key.public_key(), unit, common_name, hosts) + _text(key)

    def sign(self, request: CertificateRequest, unit: str) -> str:
        """Sign a request and return the certificate, PEM; the private key stays with the requester.

        Args:
            unit: of the certificate. It decides who counts as a member of the cluster, so it is never taken from the
                request.
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
    """Return the hosts in the subject alternative names of a certificate or request."""
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
