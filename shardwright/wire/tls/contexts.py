"""The ``ssl`` contexts for the two sides of a connection, built from `TlsSettings`."""

import ssl
from functools import partial
from pathlib import Path
from stat import S_IRWXG, S_IRWXO
from typing import Final

from shardwright.wire.tls.settings import TlsConfigurationError, TlsSettings

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
