"""What the certificate of this process says: who it belongs to, and until when it is valid."""

from datetime import UTC, datetime
from pathlib import Path

from shardwright.wire.tls.settings import TlsConfigurationError


def organization_in(path: Path) -> frozenset[tuple[str, str]]:
    """The attributes O, OU and DC of the certificate in a file, which may also have its key.

    Raises:
        TlsConfigurationError: there is none, or it is not valid now.
    """
    from cryptography import x509  # only with TLS: this takes as long as a tenth of the start
    from cryptography.x509.oid import NameOID

    short_names = {
        NameOID.ORGANIZATION_NAME: "O",
        NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
        NameOID.DOMAIN_COMPONENT: "DC",
    }
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        raise TlsConfigurationError(f"{path}: no certificate: {error}") from error
    if not certificate.not_valid_before_utc <= datetime.now(UTC) <= certificate.not_valid_after_utc:
        raise TlsConfigurationError(f"{path}: The provided SSL certificate is expired or not yet valid.")
    pairs = ((short_names.get(attribute.oid), str(attribute.value)) for attribute in certificate.subject)
    return frozenset((name, value) for name, value in pairs if name is not None)
