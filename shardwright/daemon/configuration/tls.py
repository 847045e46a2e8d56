"""Options for TLS, with the meanings and file names of MongoDB's options."""

from typing import Final

from shardwright.daemon.configuration.option import BOOLEAN, NUMBER, PATH, Option, choice, text_type
from shardwright.daemon.option_values import parse_protocols
from shardwright.wire.tls.contexts import PROTOCOLS
from shardwright.wire.tls.own_certificate import organization_in_name
from shardwright.wire.tls.settings import TlsMode, TlsSettings

_SECTION: Final = "TLS"


def _file(name: str, key: str, description: str) -> Option:
    return Option(name=f"tls-{name}", path=f"net.tls.{key}", type=PATH, section=_SECTION, help=description)


def _switch(name: str, key: str, description: str) -> Option:
    return Option(
        name=f"tls-{name}", path=f"net.tls.{key}", type=BOOLEAN, section=_SECTION, default="false", help=description
    )


TLS_OPTIONS: Final = (
    Option(
        name="tls-mode",
        path="net.tls.mode",
        type=choice(
            {mode.value: mode for mode in TlsMode},
            also={f"{mode.value}TLS": mode for mode in TlsMode if mode is not TlsMode.DISABLED},
        ),
        section=_SECTION,
        default=TlsMode.DISABLED.value,
        help="disabled; allow: clients may use it; prefer: connections to other servers use it too; require: all do",
    ),
    _file("certificate-key-file", "certificateKeyFile", "the certificate of this server and its private key, PEM"),
    _file(
        "certificate-key-file-password-file",
        "certificateKeyFilePasswordFile",
        "file with the password of that private key; only its owner may read it",
    ),
    _file("ca-file", "CAFile", "the authorities that have to have signed the certificates of peers, PEM"),
    _file("crl-file", "CRLFile", "certificates that were revoked, PEM"),
    _file("cluster-file", "clusterFile", "another certificate and key for connections to other servers, PEM"),
    _file(
        "cluster-password-file",
        "clusterPasswordFile",
        "file with the password of the private key in it; only its owner may read it",
    ),
    _file("cluster-ca-file", "clusterCAFile", "other authorities for the certificates of clients, PEM"),
    Option(
        name="tls-disabled-protocols",
        path="net.tls.disabledProtocols",
        type=text_type(parse_protocols, "NAMES"),
        section=_SECTION,
        default="none",
        help=f"of {', '.join(PROTOCOLS)}; versions before TLS1_2 are always disabled",
    ),
    Option(
        name="tls-x509-cluster-auth-dn-override",
        path="setParameter.tlsX509ClusterAuthDNOverride",
        type=text_type(organization_in_name, "DN"),
        section=_SECTION,
        unset=(),
        help="other O, OU and DC by which a certificate belongs to a member of the cluster, besides this server's own",
    ),
    Option(
        name="tls-x509-expiration-warning-threshold-days",
        path="setParameter.tlsX509ExpirationWarningThresholdDays",
        type=NUMBER,
        section=_SECTION,
        default=str(TlsSettings().expiration_warning_days),
        help="warn in the log this many days before this server's certificate expires; 0: never",
    ),
    _switch(
        "allow-connections-without-certificates", "allowConnectionsWithoutCertificates", "clients need no certificate"
    ),
    _switch("allow-invalid-certificates", "allowInvalidCertificates", "do not check the certificates of peers"),
    _switch(
        "allow-invalid-hostnames",
        "allowInvalidHostnames",
        "do not check that certificates of servers are for their hosts",
    ),
)
