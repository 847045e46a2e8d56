"""TLS settings of a process, in the terms of MongoDB's options."""

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from shardwright.wire.tls.subject_names import Organization


class TlsMode(Enum):
    """Connections that use TLS (MongoDB's ``--tlsMode``, whose values end in ``TLS``)."""

    DISABLED = "disabled"
    ALLOW = "allow"
    PREFER = "prefer"
    REQUIRE = "require"

    @property
    def accepts_tls(self) -> bool:
        """Whether clients may use TLS."""
        return self is not TlsMode.DISABLED

    @property
    def accepts_plain(self) -> bool:
        """Whether clients may connect without TLS."""
        return self is not TlsMode.REQUIRE

    @property
    def dials_tls(self) -> bool:
        """Whether connections to other servers use TLS."""
        return self in (TlsMode.PREFER, TlsMode.REQUIRE)

    def __str__(self) -> str:
        return self.value


class TlsConfigurationError(ValueError):
    """Contradicting settings, or an unusable file; the message is for the user."""


@dataclass(frozen=True, slots=True)
class TlsSettings:
    """TLS settings with the meaning of MongoDB's options of those names.

    Attributes:
        certificate_key_file: the certificate of this server and its private key, PEM.
        ca_file: the authorities for the certificates of peers, PEM; without it clients are not asked for any.
        cluster_file: certificate and key for connections to other servers, in place of ``certificate_key_file``.
        cluster_ca_file: the authorities for clients' certificates, in place of ``ca_file``.
        allows_connections_without_certificates: clients need none; one that is sent is checked.
        allows_invalid_certificates: certificates of peers are not checked at all.
        allows_invalid_hostnames: a server's certificate may be for another host.
        members_too: another organization of member certificates, while the cluster changes its own.
        expiration_warning_days: the log warns of certificates so long before they expire; 0 disables the warning.
        secured_sockets: paths of UNIX sockets at which a server requires TLS; on others it is not used.
    """

    mode: TlsMode = TlsMode.DISABLED
    certificate_key_file: Path | None = None
    certificate_key_password_file: Path | None = None
    ca_file: Path | None = None
    crl_file: Path | None = None
    cluster_file: Path | None = None
    cluster_password_file: Path | None = None
    cluster_ca_file: Path | None = None
    disabled_protocols: frozenset[str] = frozenset()
    allows_connections_without_certificates: bool = False
    allows_invalid_certificates: bool = False
    allows_invalid_hostnames: bool = False
    members_too: Organization = ()
    expiration_warning_days: int = 30
    secured_sockets: frozenset[str] = frozenset()

    @property
    def client_ca_file(self) -> Path | None:
        """Authorities for the certificates of clients."""
        return self.cluster_ca_file or self.ca_file

    def check(self) -> None:
        """Refuse combinations that a mongod refuses, with its errors, and settings that would verify no peer."""
        if self.mode is TlsMode.DISABLED:
            if self != TlsSettings():
                raise TlsConfigurationError(
                    "need to enable TLS via the sslMode/tlsMode flag when using TLS configuration parameters"
                )
            return
        if self.certificate_key_file is None:
            raise TlsConfigurationError("need tlsCertificateKeyFile or certificateSelector when TLS is enabled")
        if self.crl_file is not None and self.ca_file is None:
            raise TlsConfigurationError("need tlsCAFile with tlsCRLFile")
        if self.ca_file is None and not self.allows_invalid_certificates:
            # A mongod would connect to any server with a certificate of any authority.
            raise TlsConfigurationError("need tlsCAFile to recognise other servers, or tlsAllowInvalidCertificates")
