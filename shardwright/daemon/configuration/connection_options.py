"""Options for connections: TLS as in MongoDB, and limits, also of unread replies and unauthenticated clients."""

from typing import Final

from shardwright.daemon.configuration.option import (
    BOOLEAN,
    COUNT,
    NUMBER,
    PATH,
    SECONDS,
    Option,
    ValueType,
    choice,
    text_type,
)
from shardwright.daemon.option_values import parse_protocols
from shardwright.wire.tls import PROTOCOLS, TlsMode, TlsSettings, organization_in_name
from shardwright.wire.transport.accepting import HANDSHAKES_MAX, HANDSHAKES_MIN
from shardwright.wire.transport.reservations import UnreadBounds
from shardwright.wire.transport.transport import Timeouts
from shardwright.wire.transport.unauthenticated_clients import NewcomerLimits

_TIMEOUTS: Final = Timeouts()
_UNREAD_DEFAULTS: Final = UnreadBounds()
_NEWCOMER_DEFAULTS: Final = NewcomerLimits()

_TLS_SECTION: Final = "TLS"


def _limit(
    name: str,
    key: str,
    value_type: ValueType,
    default: float,
    description: str,
    *,
    is_reloadable: bool = True,
) -> Option:
    return Option(
        name=name,
        path=f"shardwright.limits.{key}",
        type=value_type,
        section="Limits",
        default=f"{default:g}" if value_type is SECONDS else str(int(default)),
        is_reloadable=is_reloadable,
        help=description,
    )


LIMITS: Final = (
    Option(
        name="max-connections",
        path="net.maxIncomingConnections",
        type=COUNT,
        section="Limits",
        default_text="as many as the limit on open files allows",
        is_reloadable=True,
        help="maximum number of clients; more are refused",
    ),
    Option(
        name="handshakes-max",
        path="shardwright.limits.handshakes",
        type=COUNT,
        section="Limits",
        default_text=f"a quarter of --max-connections, from {HANDSHAKES_MIN} to {HANDSHAKES_MAX}",
        help="with TLS: how many connections may be in their handshake; the oldest makes room for a new one",
    ),
    _limit(
        "unread-reply-mb",
        "unreadReplyMB",
        COUNT,
        _UNREAD_DEFAULTS.total_bytes >> 20,
        "megabytes of memory for replies that clients have not read",
    ),
    _limit(
        "unread-reply-mb-per-client",
        "unreadReplyMBPerClient",
        COUNT,
        _UNREAD_DEFAULTS.client_bytes >> 20,
        "the same for one client that reads nothing at all",
    ),
    _limit(
        "unread-reply-seconds",
        "unreadReplySeconds",
        COUNT,
        _UNREAD_DEFAULTS.patience_seconds,
        "seconds for which such a client may read nothing",
    ),
    Option(
        name="shutdown-seconds",
        path="shardwright.limits.shutdownSeconds",
        type=SECONDS,
        section="Limits",
        default_text="15 for a router, else 5",
        is_reloadable=True,
        help="how long operations may continue after the signal to shut down",
    ),
    _limit(
        "hello-seconds",
        "helloSeconds",
        SECONDS,
        _TIMEOUTS.hello_seconds,
        "how long a host may be silent before it is considered down",
    ),
    _limit(
        "selection-seconds",
        "selectionSeconds",
        SECONDS,
        _TIMEOUTS.selection_seconds,
        "how long operations wait for a suitable replica set member",
    ),
    _limit(
        "log-in-seconds",
        "logInSeconds",
        SECONDS,
        _NEWCOMER_DEFAULTS.log_in_seconds,
        "with access control: how long a client may take for its first request, and to log in",
        is_reloadable=False,
    ),
    _limit(
        "idle-seconds-before-log-in",
        "idleSecondsBeforeLogIn",
        SECONDS,
        _NEWCOMER_DEFAULTS.idle_seconds,
        "with access control: how long a client that does not log in, such as a monitor of a driver, may be silent",
        is_reloadable=False,
    ),
    _limit(
        "message-bytes-before-log-in",
        "messageBytesBeforeLogIn",
        COUNT,
        _NEWCOMER_DEFAULTS.message_bytes,
        "with access control: bytes of the longest message of a client that has not logged in",
        is_reloadable=False,
    ),
    _limit(
        "failed-log-ins",
        "failedLogIns",
        COUNT,
        _NEWCOMER_DEFAULTS.failures,
        "with access control: a connection is closed with its Nth failed log-in",
        is_reloadable=False,
    ),
)


def _file(name: str, key: str, description: str) -> Option:
    return Option(name=f"tls-{name}", path=f"net.tls.{key}", type=PATH, section=_TLS_SECTION, help=description)


def _switch(name: str, key: str, description: str) -> Option:
    return Option(
        name=f"tls-{name}", path=f"net.tls.{key}", type=BOOLEAN, section=_TLS_SECTION, default="false", help=description
    )


TLS_OPTIONS: Final = (
    Option(
        name="tls-mode",
        path="net.tls.mode",
        type=choice(
            {mode.value: mode for mode in TlsMode},
            also={f"{mode.value}TLS": mode for mode in TlsMode if mode is not TlsMode.DISABLED},
        ),
        section=_TLS_SECTION,
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
        section=_TLS_SECTION,
        default="none",
        help=f"of {', '.join(PROTOCOLS)}; versions before TLS1_2 are always disabled",
    ),
    Option(
        name="tls-x509-cluster-auth-dn-override",
        path="setParameter.tlsX509ClusterAuthDNOverride",
        type=text_type(organization_in_name, "DN"),
        section=_TLS_SECTION,
        unset=(),
        help="other O, OU and DC by which a certificate belongs to a member of the cluster, besides this server's own",
    ),
    Option(
        name="tls-x509-expiration-warning-threshold-days",
        path="setParameter.tlsX509ExpirationWarningThresholdDays",
        type=NUMBER,
        section=_TLS_SECTION,
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
