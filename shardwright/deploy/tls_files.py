"""TLS of a local cluster: its authority, and the certificates that this has signed.

::

    DIR/tls/ca.pem        the certificate of the authority, by which clients recognise servers and servers clients
    DIR/tls/ca-key.pem    its private key
    DIR/tls/server.pem    certificate and key of all processes, which share a machine
    DIR/tls/member.pem    certificate and key with which they connect to each other, and the launcher in their place
    DIR/tls/client.pem    certificate and key for clients; also the launcher's
    DIR/tls/crl.pem       if somebody puts it there: the authority's list of certificates that it has revoked

Files with keys are for their owner alone. What is missing is made at the next start, so that a file can be renewed by
removing it.
"""

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final

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
from shardwright.deploy.errors import DeployError

_ORGANIZATION: Final = "shardwright"
_SERVERS: Final = "servers"
_CLIENTS: Final = "clients"
"""Another unit than that of the servers: who has a certificate of theirs may count as one of them."""
_VALID: Final = timedelta(days=3650)
_SIGNS_CERTIFICATES: Final = x509.KeyUsage(
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
_CLOCK_DIFFERENCE_MAX: Final = timedelta(days=1)


@dataclass(frozen=True)
class TlsFiles:
    """The files of a cluster with TLS."""

    directory: Path

    @property
    def ca_file(self) -> Path:
        """The certificate of the authority."""
        return self.directory / "ca.pem"

    @property
    def server_file(self) -> Path:
        """Certificate and key of the processes."""
        return self.directory / "server.pem"

    @property
    def member_file(self) -> Path:
        """Certificate and key for connections of the processes to each other."""
        return self.directory / "member.pem"

    @property
    def client_file(self) -> Path:
        """Certificate and key for clients."""
        return self.directory / "client.pem"

    @property
    def crl_file(self) -> Path:
        """The list of revoked certificates, which need not exist; processes take it over when they start."""
        return self.directory / "crl.pem"

    def create(self) -> None:
        """Make the files that do not exist yet.

        Raises:
            DeployError: they cannot be written, or those that exist cannot be read.
        """
        try:
            self.directory.mkdir(mode=0o700, exist_ok=True)
            authority = self._authority()
            hosts = ("localhost", "127.0.0.1", "::1", socket.gethostname())
            if not self.server_file.exists():
                write_once(self.server_file, authority.issue(_SERVERS, "localhost", hosts))
            if not self.member_file.exists():
                write_once(self.member_file, authority.issue(_SERVERS, "member", ()))
            if not self.client_file.exists():
                write_once(self.client_file, authority.issue(_CLIENTS, "client", ()))
        except (OSError, ValueError, TypeError) as error:
            reason = error.strerror if isinstance(error, OSError) else error
            raise DeployError(f"cannot create the certificates in {self.directory}: {reason}") from error

    def client_options(self) -> Mapping[str, Any]:
        """The options with which a client connects."""
        return {"tls": True, "tlsCAFile": str(self.ca_file), "tlsCertificateKeyFile": str(self.client_file)}

    def log_in(self) -> Mapping[str, Any]:
        """The options with which a client connects, and logs in as a part of the cluster."""
        return {
            **self.client_options(),
            "tlsCertificateKeyFile": str(self.member_file),
            "authMechanism": "MONGODB-X509",
            "authSource": "$external",
        }

    def daemon_words(self) -> list[str]:
        """The options of a daemon."""
        files = ("--tls-certificate-key-file", str(self.server_file), "--tls-cluster-file", str(self.member_file))
        revoked = ("--tls-crl-file", str(self.crl_file)) if self.crl_file.exists() else ()
        return ["--tls-mode", "require", *files, "--tls-ca-file", str(self.ca_file), *revoked]

    def mongod_words(self) -> list[str]:
        """The options of a mongod."""
        files = ("--tlsCertificateKeyFile", str(self.server_file), "--tlsClusterFile", str(self.member_file))
        revoked = ("--tlsCRLFile", str(self.crl_file)) if self.crl_file.exists() else ()
        return ["--tlsMode", "requireTLS", *files, "--tlsCAFile", str(self.ca_file), *revoked]

    def describe(self) -> dict[str, str]:
        """What ``--json`` shows."""
        return {
            "caFile": str(self.ca_file),
            "clientCertificateFile": str(self.client_file),
            "memberCertificateFile": str(self.member_file),
        }

    def _authority(self) -> "_Authority":
        key_file = self.directory / "ca-key.pem"
        if not key_file.exists() or not self.ca_file.exists():
            authority = _Authority.new()
            made_by_an_old_one = (key_file, self.ca_file, self.server_file, self.member_file, self.client_file)
            for each in made_by_an_old_one:
                each.unlink(missing_ok=True)
            write_once(key_file, _text(authority.key))
            write_once(self.ca_file, authority.certificate.public_bytes(Encoding.PEM).decode())
        key = load_pem_private_key(key_file.read_bytes(), None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise ValueError(f"{key_file} is not a key that was made here")
        return _Authority(key, x509.load_pem_x509_certificate(self.ca_file.read_bytes()))


@dataclass(frozen=True)
class _Authority:
    key: ec.EllipticCurvePrivateKey
    certificate: x509.Certificate

    @classmethod
    def new(cls) -> "_Authority":
        key = _new_key()
        name = _name("authority", f"authority of {socket.gethostname()}"[:64])
        builder = (
            _builder(name, name, key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_SIGNS_CERTIFICATES, critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        )
        return cls(key, builder.sign(key, hashes.SHA256()))

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
