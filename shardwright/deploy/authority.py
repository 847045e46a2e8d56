"""The certificate authority of a cluster, and certificate requests from hosts that keep their own keys."""

import socket
import warnings
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Self

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from shardwright.daemon.option_values import parse_host_name
from shardwright.deploy.durable_files import write_private
from shardwright.deploy.errors import DeployError

_ORGANIZATION: Final = "shardwright"
_UNIT: Final = "authority"
NAME_BYTES_MAX: Final = 64
"""Longest common name, as X.509 limits it."""
_KEY_BITS_MIN: Final = 256
_WILDCARD: Final = "*."
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
MALFORMED: Final = (
    ValueError,
    TypeError,
    LookupError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
"""Errors for malformed parts of a certificate or request."""


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
        try:
            request = x509.load_pem_x509_csr(encoded)
            key = request.public_key()
            is_signed = request.is_signature_valid
            hosts = alternative_names(request.extensions)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of a name that is too long, which is refused below
                names = request.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
        except MALFORMED as error:
            raise ValueError(str(error)) from error
        if not is_signed or not isinstance(key, ec.EllipticCurvePublicKey) or key.key_size < _KEY_BITS_MIN:
            raise ValueError(f"it is not signed with an elliptic curve key of at least {_KEY_BITS_MIN} bits")
        if len(names) != 1:
            raise ValueError("its subject has no single common name")
        return cls(parse_common_name(str(names[0].value)), tuple(map(parse_certified_host, hosts)), key)


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
        name = _name(_UNIT, f"{title} of {socket.gethostname()}"[:NAME_BYTES_MAX])
        builder = (
            _builder(name, name, key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

    @classmethod
    def load(cls, key_file: Path, file: Path) -> Self:
        """Read the authority from two files; the one with certificates may have other authorities too.

        Raises:
            DeployError: they cannot be read, do not fit together, or cannot sign certificates now.
        """
        key = _read_key(key_file)
        fitting = [each for each in read_certificates(file) if _fits(key, each)]
        if not fitting:
            raise DeployError(f"the key in {key_file} does not fit the certificate in {file}: put the right one back")
        certificate = fitting[0]
        if not _may_sign(certificate, file):
            raise DeployError(f"the certificate in {file} is not an authority's: it may not sign certificates")
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
        if not first <= datetime.now(UTC) <= last:
            raise DeployError(
                f"the authority in {file} is valid from {first:%Y-%m-%d} until {last:%Y-%m-%d}, and not now: check the "
                "clock, or replace it together with everything that it has signed"
            )
        return cls(key, certificate)

    def save(self, key_file: Path, file: Path) -> None:
        """Write both files, the certificate last."""
        write_private(key_file, _text(self.key))
        write_private(file, self.text)

    @property
    def text(self) -> str:
        """The authority's certificate as PEM."""
        return self.certificate.public_bytes(Encoding.PEM).decode()

    def issue(self, unit: str, common_name: str, hosts: tuple[str, ...]) -> str:
        """Issue a certificate with its key, PEM; with hosts it is valid for a server as well as a client.

        It does not outlive the authority.
        """
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
            _builder(_name(unit, common_name), self.certificate.subject, key, self.certificate)
            .add_extension(x509.ExtendedKeyUsage(uses), critical=False)
            .add_extension(issuer_key, critical=False)
        )
        if hosts:
            builder = builder.add_extension(_alternative_names(hosts), critical=False)
        return builder.sign(self.key, hashes.SHA256()).public_bytes(Encoding.PEM).decode()


def _new_key() -> ec.EllipticCurvePrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, within: x509.Certificate | None = None
) -> x509.CertificateBuilder:
    """Return the builder of a certificate whose validity is within another one's."""
    first = datetime.now(UTC) - _CLOCK_DIFFERENCE_MAX
    last = datetime.now(UTC) + _VALID
    if within is not None:
        first, last = max(first, within.not_valid_before_utc), min(last, within.not_valid_after_utc)
    return (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
    )


def _name(unit: str, common_name: str) -> x509.Name:
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, unit),
            x509.NameAttribute(NameOID.COMMON_NAME, common_name),
        ]
    )


def read_certificate(path: Path) -> x509.Certificate:
    """Read the first certificate in a file; errors as `read_certificates`."""
    return read_certificates(path)[0]


def read_certificates(path: Path) -> list[x509.Certificate]:
    """Read all certificates in a file, at least one.

    Raises:
        DeployError: they cannot be read.
    """
    try:
        found = x509.load_pem_x509_certificates(path.read_bytes())
        for each in found:  # its parts are parsed when they are read
            _ = each.public_key(), each.subject, each.not_valid_before_utc, alternative_names(each.extensions)
    except OSError as error:
        raise DeployError(f"cannot read {path}: {error.strerror}") from error
    except MALFORMED as error:
        raise DeployError(f"{path} has no certificate: {error}") from error
    return found


def key_fits(path: Path) -> bool:
    """Whether a file has the private key of its first certificate."""
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except MALFORMED:
        return False
    return _fits(key, read_certificate(path))


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(path.read_bytes(), None)
    except OSError as error:
        raise DeployError(f"cannot read {path}: {error.strerror}") from error
    except TypeError as error:
        raise DeployError(f"the key in {path} is encrypted: put a decrypted one there") from error
    except MALFORMED as error:
        raise DeployError(f"{path} has no private key: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DeployError(f"{path} is not a key of `shardwright`: those have an elliptic curve")
    return key


def _fits(key: Any, certificate: x509.Certificate) -> bool:  # noqa: ANN401 - keys of all algorithms
    return _public_bytes(key.public_key()) == _public_bytes(certificate.public_key())


def _public_bytes(key: Any) -> bytes:  # noqa: ANN401
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return encoded


def _may_sign(certificate: x509.Certificate, file: Path) -> bool:
    """Whether a certificate is an authority's; without a key usage it may be used for everything."""
    try:
        found = {type(each.value): each.value for each in certificate.extensions}
    except MALFORMED as error:
        raise DeployError(f"{file} has no certificate: {error}") from error
    constraints, usage = found.get(x509.BasicConstraints), found.get(x509.KeyUsage)
    return (
        isinstance(constraints, x509.BasicConstraints)
        and constraints.ca
        and (not isinstance(usage, x509.KeyUsage) or usage.key_cert_sign)
    )


def parse_common_name(text: str) -> str:
    """Check the common name of a certificate; raise ValueError with a message for the user."""
    if not text or not text.isprintable():
        raise ValueError(f"{text!r} is not a name of printable characters")
    if len(text.encode("utf-8", "surrogatepass")) > NAME_BYTES_MAX:
        raise ValueError(f"{text!r} is longer than the {NAME_BYTES_MAX} bytes of a certificate's common name")
    return text


def parse_certified_host(text: str) -> str:
    """Parse a host name, possibly with a wildcard, or an address; raise ValueError with a message for the user."""
    try:
        return str(ip_address(text))
    except ValueError:
        parse_host_name(text.removeprefix(_WILDCARD))
    return text


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
