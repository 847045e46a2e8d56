"""TLS of a process: names in certificates, requirements for peers, ``ssl`` contexts, and the certificates in use.

The cryptography is the standard library's ``ssl``; `wire.transport` has the sockets and handshakes. Files that cannot
be used, and contradicting settings, raise TlsConfigurationError, whose message is for the user.

Names are written as in MongoDB: RFC 2253, the most specific part first. Names of attributes, order and escapes are as
``openssl x509 -nameopt RFC2253`` prints them.
"""

import ssl
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from functools import partial
from pathlib import Path
from stat import S_IRWXG, S_IRWXO
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from cryptography import x509


Subject: TypeAlias = tuple[tuple[tuple[str, str], ...], ...]
"""Distinguished name as ``SSLObject.getpeercert`` returns it: parts of pairs of an attribute and a value."""

Organization: TypeAlias = tuple[tuple[str, str], ...]
"""Attributes with their values, sorted; an attribute may occur several times."""

_SHORT_NAMES: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "givenName": "GN",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "street",
    "surname": "SN",
    "userId": "UID",
}
_ESCAPED: Final = frozenset(',+"\\<>;')


def subject_text(subject: Subject) -> str:
    """Return the name of the user who logs in with the certificate of this subject."""
    return ",".join("+".join(_attribute(*pair) for pair in reversed(part)) for part in reversed(subject))


def organization_of(subject: Subject) -> Organization:
    """Return the attributes that all members of a cluster share, whatever their order: O, OU and DC."""
    pairs = ((_SHORT_NAMES.get(name, name), value) for part in subject for name, value in part)
    return tuple(sorted(pair for pair in pairs if pair[0] in {"O", "OU", "DC"}))


def _attribute(name: str, value: str) -> str:
    last = len(value) - 1
    shown = "".join(
        _escape(character, is_edge=number == last, is_first=number == 0) for number, character in enumerate(value)
    )
    return f"{_SHORT_NAMES.get(name, name)}={shown}"


def _escape(character: str, *, is_edge: bool, is_first: bool) -> str:
    if character in _ESCAPED or (character == " " and (is_edge or is_first)) or (character == "#" and is_first):
        return f"\\{character}"
    if character.isascii() and character.isprintable():
        return character
    return "".join(f"\\{byte:02X}" for byte in character.encode())


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


PROTOCOLS: Final = ("TLS1_0", "TLS1_1", "TLS1_2", "TLS1_3")
"""Protocols in MongoDB's ``tlsDisabledProtocols``. The first two are always off, by the library's default."""


def server_context(settings: TlsSettings) -> ssl.SSLContext:
    """Build the context for clients that connect to this process."""
    assert settings.certificate_key_file is not None, "checked with the settings"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _set_protocols(context, settings)
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION  # as a mongod, which resumes no sessions
    context.num_tickets = 0
    _load_certificate(context, settings.certificate_key_file, settings.certificate_key_password_file)
    if settings.client_ca_file is not None and not settings.allows_invalid_certificates:
        # Not CERT_REQUIRED: refusing a client without a certificate only after the handshake allows the log to name it.
        context.verify_mode = ssl.CERT_OPTIONAL
        _load_authorities(context, settings.client_ca_file, settings.crl_file)
    return context


def client_context(settings: TlsSettings, *, checks_host_name: bool) -> ssl.SSLContext:
    """Build the context for servers that this process connects to.

    The certificate has to match the host if ``checks_host_name``, but not over a UNIX socket, which has none.
    """
    own, password_file = settings.cluster_file, settings.cluster_password_file
    if own is None:
        own, password_file = settings.certificate_key_file, settings.certificate_key_password_file
    assert own is not None, "checked with the settings"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    _set_protocols(context, settings)
    _load_certificate(context, own, password_file)
    if settings.allows_invalid_certificates or settings.ca_file is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        return context
    context.check_hostname = checks_host_name and not settings.allows_invalid_hostnames
    _load_authorities(context, settings.ca_file, settings.crl_file)
    return context


def _set_protocols(context: ssl.SSLContext, settings: TlsSettings) -> None:
    if settings.disabled_protocols.issuperset(PROTOCOLS[2:]):
        raise TlsConfigurationError("all protocols are disabled")
    if "TLS1_2" in settings.disabled_protocols:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if "TLS1_3" in settings.disabled_protocols:
        context.maximum_version = ssl.TLSVersion.TLSv1_2


def _load_certificate(context: ssl.SSLContext, path: Path, password_file: Path | None) -> None:
    password = _refuse_encrypted_key if password_file is None else partial(_password_in, password_file)
    try:
        context.load_cert_chain(path, password=password)
    except (OSError, ValueError) as error:
        raise TlsConfigurationError(f"{path}: no certificate with its private key: {_reason(error)}") from error


def _load_authorities(context: ssl.SSLContext, path: Path, crl_file: Path | None) -> None:
    try:
        context.load_verify_locations(path)
    except OSError as error:
        raise TlsConfigurationError(f"{path}: no certificates of authorities: {_reason(error)}") from error
    if crl_file is None:
        return
    try:
        context.load_verify_locations(crl_file)
    except OSError as error:
        raise TlsConfigurationError(f"{crl_file}: no revocation list: {_reason(error)}") from error
    context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF


def _refuse_encrypted_key() -> str:
    """Fail, where the library would prompt for a password at the terminal."""
    raise ValueError("the private key is encrypted, and no file with its password is given")


def _password_in(path: Path) -> bytes:
    """Read the first line of a file; raise OSError if that fails, ValueError if not only the owner may read it."""
    if path.stat().st_mode & (S_IRWXG | S_IRWXO):
        raise ValueError(f"permissions on {path} are too open")
    first_line, _, _ = path.read_bytes().partition(b"\n")
    return first_line.removesuffix(b"\r")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    return error.strerror if isinstance(error, OSError) and error.strerror else str(error)


def own_certificate(path: Path) -> tuple[Organization, datetime]:
    """Read the attributes O, OU and DC and the expiry of the certificate in a file, which may also contain its key.

    An expired certificate is refused.
    """
    from cryptography import x509  # only with TLS: this import takes a tenth of the start time

    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TlsConfigurationError(f"{path}: no certificate: {error}") from error
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise TlsConfigurationError(f"{path}: The provided SSL certificate is expired or not yet valid.")
    return _organization(certificate.subject), certificate.not_valid_after_utc


def organization_in_name(text: str) -> Organization:
    """Read the attributes O, OU and DC of a name in the format of RFC 4514, such as ``O=shop,OU=servers``.

    Raises ValueError if the text is not such a name, or has none of them; the message is for the user.
    """
    from cryptography import x509

    try:
        organization = _organization(x509.Name.from_rfc4514_string(text))
    except ValueError as error:
        raise ValueError(f"{text!r} is not a distinguished name") from error
    if not organization:
        raise ValueError("Cluster member DN's must contain at least one O, OU, or DC component")
    return organization


def _organization(name: "x509.Name") -> Organization:
    from cryptography.x509.oid import NameOID

    short_names = {
        NameOID.ORGANIZATION_NAME: "O",
        NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
        NameOID.DOMAIN_COMPONENT: "DC",
    }
    pairs = ((short_names.get(attribute.oid), str(attribute.value)) for attribute in name)
    return tuple(sorted((short_name, value) for short_name, value in pairs if short_name is not None))


class ProcessTls:
    """TLS settings and contexts of a process.

    Raises TlsConfigurationError if the settings contradict each other or a file cannot be used.

    Attributes:
        accepting: for clients; None without TLS.
        dialing: for servers on the network; None if connections to them do not use TLS.
        dialing_locally: for servers on UNIX sockets.
        organization: the attributes common to the certificates of the cluster's members (`own_certificate`).
        expires_at: the expiry of the certificate of this server; None without TLS.
    """

    def __init__(self, settings: TlsSettings = TlsSettings()) -> None:
        settings.check()
        self.settings = settings
        self.accepting: ssl.SSLContext | None = None
        self.dialing: ssl.SSLContext | None = None
        self.dialing_locally: ssl.SSLContext | None = None
        self.organization: Organization = ()
        self.expires_at: datetime | None = None
        self.rotate()

    def rotate(self) -> None:
        """Read all files for future connections; open ones are unaffected. Either all of them change or none."""
        settings = self.settings
        if settings.mode is TlsMode.DISABLED:
            return
        assert settings.certificate_key_file is not None, "checked with the settings"
        organization, expires_at = own_certificate(settings.certificate_key_file)
        accepting = server_context(settings)
        dialing = client_context(settings, checks_host_name=True)
        dialing_locally = client_context(settings, checks_host_name=False)
        self.accepting = accepting
        self.dialing = dialing if settings.mode.dials_tls else None
        self.dialing_locally = dialing_locally
        self.organization = organization
        self.expires_at = expires_at

    def is_member(self, subject: Subject | None) -> bool:
        """Whether a verified certificate belongs to a member of the cluster: it has this server's organization."""
        organization = organization_of(subject or ())
        return bool(organization) and organization in (self.organization, self.settings.members_too)
