"""The options for TLS, which are MongoDB's with the same meanings."""

import argparse
from pathlib import Path

from shardwright.wire.tls.contexts import PROTOCOLS
from shardwright.wire.tls.own_certificate import organization_in_name
from shardwright.wire.tls.settings import TlsMode, TlsSettings
from shardwright.wire.tls.subject_names import Organization


def add_tls_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--tls-mode`` and the other options of `TlsSettings`."""
    group = parser.add_argument_group("TLS")
    group.add_argument(
        "--tls-mode",
        type=TlsMode,
        choices=tuple(TlsMode),
        default=TlsMode.DISABLED,
        help="disabled; allow: clients may use it; prefer: connections to other servers use it too; require: all do",
    )
    _add_file(group, "--tls-certificate-key-file", "the certificate of this server and its private key, PEM")
    _add_file(group, "--tls-certificate-key-file-password-file", "the password of that private key; its owner's alone")
    _add_file(group, "--tls-ca-file", "the authorities that have to have signed the certificates of peers, PEM")
    _add_file(group, "--tls-crl-file", "certificates that were revoked, PEM")
    _add_file(group, "--tls-cluster-file", "another certificate and key for connections to other servers, PEM")
    _add_file(group, "--tls-cluster-password-file", "the password of the private key in it; its owner's alone")
    _add_file(group, "--tls-cluster-ca-file", "other authorities for the certificates of clients, PEM")
    group.add_argument(
        "--tls-disabled-protocols",
        type=_protocols,
        default=frozenset(),
        metavar="NAMES",
        help=f"of {', '.join(PROTOCOLS)}; those before TLS1_2 are always disabled",
    )
    group.add_argument(
        "--tls-x509-cluster-auth-dn-override",
        type=_organization,
        default=(),
        metavar="DN",
        help="other O, OU and DC by which a certificate is that of a member of the cluster, besides this server's own",
    )
    group.add_argument(
        "--tls-x509-expiration-warning-threshold-days",
        type=_days,
        default=TlsSettings().expiration_warning_days,
        metavar="DAYS",
        help="warn in the log this long before this server's certificate expires; 0: never (default: %(default)s)",
    )
    for name, description in (
        ("--tls-allow-connections-without-certificates", "clients need no certificate"),
        ("--tls-allow-invalid-certificates", "do not check the certificates of peers"),
        ("--tls-allow-invalid-hostnames", "do not check that certificates of servers are for their hosts"),
    ):
        group.add_argument(name, action="store_true", help=description)


def tls_settings(parsed: argparse.Namespace, *, secured_sockets: frozenset[str]) -> TlsSettings:
    """The settings in the options.

    Args:
        parsed: the options.
        secured_sockets: see `TlsSettings`.
    """
    return TlsSettings(
        mode=parsed.tls_mode,
        certificate_key_file=parsed.tls_certificate_key_file,
        certificate_key_password_file=parsed.tls_certificate_key_file_password_file,
        ca_file=parsed.tls_ca_file,
        crl_file=parsed.tls_crl_file,
        cluster_file=parsed.tls_cluster_file,
        cluster_password_file=parsed.tls_cluster_password_file,
        cluster_ca_file=parsed.tls_cluster_ca_file,
        disabled_protocols=parsed.tls_disabled_protocols,
        allows_connections_without_certificates=parsed.tls_allow_connections_without_certificates,
        allows_invalid_certificates=parsed.tls_allow_invalid_certificates,
        allows_invalid_hostnames=parsed.tls_allow_invalid_hostnames,
        members_too=parsed.tls_x509_cluster_auth_dn_override,
        expiration_warning_days=parsed.tls_x509_expiration_warning_threshold_days,
        secured_sockets=secured_sockets,
    )


def _add_file(group: argparse._ArgumentGroup, name: str, description: str) -> None:
    group.add_argument(name, type=Path, metavar="PATH", help=description)


def _organization(text: str) -> Organization:
    try:
        return organization_in_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _days(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of days")
    return int(text)


def _protocols(text: str) -> frozenset[str]:
    names = frozenset(text.split(",")) - {"none"}
    for name in names.difference(PROTOCOLS):
        raise argparse.ArgumentTypeError(f"Unrecognized disabledProtocols '{name}'")
    return names
