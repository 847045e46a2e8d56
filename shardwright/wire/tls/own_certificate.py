"""The certificate of this process: its owner and its expiry."""

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from shardwright.wire.tls.settings import TlsConfigurationError
from shardwright.wire.tls.subject_names import Organization

if TYPE_CHECKING:
    from cryptography import x509


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
