"""The table of all options of the daemons, the source of command lines, files, schemas and reference pages.

Names in files are as in mongos and mongod if they have the option; otherwise they begin with ``shardwright``.
"""

from functools import partial
from typing import Final

from shardwright.daemon.configuration.connection_options import LIMITS, TLS_OPTIONS
from shardwright.daemon.configuration.option import (
    ADDRESSES,
    BOOLEAN,
    MILLISECONDS,
    PATH,
    PORT,
    SECONDS,
    Option,
    Program,
    ValueType,
    choice,
    text_type,
)
from shardwright.daemon.logs import LEVELS, LogFormat, LogRotation
from shardwright.daemon.option_values import (
    parse_advertised,
    parse_json_filter,
    parse_member,
    parse_number_up_to,
    parse_pair,
    parse_ratio,
    parse_replica_set,
    parse_socket_path,
    parse_url,
)
from shardwright.wire.transport.cluster_auth import ClusterAuthMode

SLOW_MS: Final = 100
"""MongoDB's ``slowOpThresholdMs``."""

WORKERS_MAX: Final = 64
"""The maximum number of workers that a cursor id can identify."""

CATALOG_SECONDS: Final = 30.0
CONFIG_SERVER_PORT: Final = 27019

_NETWORK: Final = "Network"
_ACCESS: Final = "Access control"
_LOGS: Final = "Logs and process"
_METRICS: Final = "Metrics"
_TRACING: Final = "Tracing"
_AUDIT: Final = "Audit log"
_MONGOD: Final = "The mongod"
_ROUTER: Final = "Router"

COMMON: Final = (
    Option(
        name="bind-ip",
        path="net.bindIp",
        type=ADDRESSES,
        section=_NETWORK,
        default="127.0.0.1",
        help="addresses to listen on, separated by commas; IPv6 with or without brackets",
    ),
    Option(name="port", path="net.port", type=PORT, section=_NETWORK, default="0", help="port for clients"),
    Option(
        name="advertise",
        path="shardwright.advertise",
        type=text_type(parse_advertised, "HOST[:PORT]"),
        section=_NETWORK,
        default_text="the first address of --bind-ip that is not loopback, or the machine's host name for 0.0.0.0 and "
        "::, with --port",
        help="address at which the rest of the cluster and clients reach this process",
    ),
    Option(
        name="unix-socket-directory",
        path="net.unixDomainSocket.pathPrefix",
        type=PATH,
        section=_NETWORK,
        default_text="TCP only",
        help="directory of UNIX sockets through which daemons on this machine reach each other",
    ),
    Option(
        name="key-file",
        path="security.keyFile",
        type=PATH,
        section=_ACCESS,
        help="the key of the cluster, which turns access control on; only its owner may read it",
    ),
    Option(
        name="cluster-auth-mode",
        path="security.clusterAuthMode",
        type=choice({mode.value: mode for mode in ClusterAuthMode}),
        section=_ACCESS,
        default_text="keyFile, if there is a key file",
        help="how the processes of the cluster recognise each other: by the key (keyFile), by certificates (x509), or, "
        "while that changes, by both (sendKeyFile, then sendX509)",
    ),
    Option(
        name="noauth",
        path="shardwright.noauth",
        type=BOOLEAN,
        section=_ACCESS,
        default="false",
        help="listen on other addresses than loopback even without a key: anyone who reaches them may do anything",
    ),
    *TLS_OPTIONS,
    Option(
        name="metrics-port",
        path="shardwright.metrics.port",
        type=PORT,
        section=_METRICS,
        help="port for /metrics, /healthz and /readyz over HTTP, 0 for any free one",
    ),
    Option(
        name="metrics-bind-ip",
        path="shardwright.metrics.bindIp",
        type=ADDRESSES,
        section=_METRICS,
        default="127.0.0.1",
        help="addresses to serve these on, without TLS and to anyone",
    ),
    *LIMITS,
    Option(
        name="log-level",
        path="systemLog.verbosity",
        type=choice(
            {level: level for level in LEVELS}, also={"0": "info", **dict.fromkeys(map(str, range(1, 6)), "debug")}
        ),
        section=_LOGS,
        default="info",
        is_reloadable=True,
        help="the least severe lines to log; MongoDB's 0 is info, and its 1 to 5 are debug",
    ),
    Option(
        name="log-file",
        path="systemLog.path",
        type=PATH,
        section=_LOGS,
        default_text="standard error",
        help="append the log to this file",
    ),
    Option(
        name="log-rotate",
        path="systemLog.logRotate",
        type=choice({str(each): each for each in LogRotation}),
        section=_LOGS,
        default=str(LogRotation.RENAME),
        help="what logRotate and SIGUSR1 do with the log file",
    ),
    Option(
        name="log-format",
        path="shardwright.log.format",
        type=choice({str(each): each for each in LogFormat}),
        section=_LOGS,
        default=str(LogFormat.JSON),
        help="the form of log lines: ours, or mongod's",
    ),
    Option(
        name="redact-client-log-data",
        path="security.redactClientLogData",
        type=BOOLEAN,
        section=_LOGS,
        default="false",
        is_reloadable=True,
        help="write no data of clients into the log",
    ),
    Option(
        name="slow-ms",
        path="operationProfiling.slowOpThresholdMs",
        type=MILLISECONDS,
        section=_LOGS,
        default=str(SLOW_MS),
        is_reloadable=True,
        help="log operations that take longer than this",
    ),
    Option(
        name="pid-file",
        path="processManagement.pidFilePath",
        type=PATH,
        section=_LOGS,
        help="write the process id to this file, which is removed at the end",
    ),
)
"""The options of all daemons."""

AUDIT: Final = (
    Option(
        name="audit-destination",
        path="auditLog.destination",
        type=choice({"file": "file"}),
        section=_AUDIT,
        default_text="off",
        help="turn the audit log on",
    ),
    Option(name="audit-path", path="auditLog.path", type=PATH, section=_AUDIT, help="the file of the audit log"),
    Option(
        name="audit-filter",
        path="auditLog.filter",
        type=text_type(parse_json_filter, "JSON"),
        section=_AUDIT,
        default_text="all",
        help='which events to write, a query on them, for example {"atype": "authCheck"}',
    ),
)

OTLP_ENDPOINT: Final = Option(
    name="otlp-endpoint",
    path="shardwright.tracing.otlpEndpoint",
    type=text_type(parse_url, "URL"),
    section=_TRACING,
    default_text="$OTEL_EXPORTER_OTLP_ENDPOINT",
    help="export spans to this OpenTelemetry collector over HTTP; needs the extra `otel`",
)

SIDECAR: Final = (
    *AUDIT,
    Option(
        name="mongod-socket",
        path="shardwright.mongod.socket",
        type=text_type(parse_socket_path, "PATH"),
        section=_MONGOD,
        is_required=True,
        help="the UNIX socket of the mongod",
    ),
    Option(
        name="mongod-tls",
        path="shardwright.mongod.tls",
        type=BOOLEAN,
        section=_MONGOD,
        default="false",
        help="use TLS on this socket, because the mongod has --tlsMode requireTLS",
    ),
    Option(
        name="mongod-address",
        path="shardwright.mongod.address",
        type=text_type(parse_member, "HOST:PORT|SOCKET"),
        section=_MONGOD,
        is_required=True,
        help="the mongod's address in the configuration of its replica set",
    ),
)
"""The options of daemons that run in front of a mongod."""

PARAMETERS: Final = Option(
    name="set-parameter",
    path="setParameter",
    type=text_type(parse_pair, "NAME=VALUE"),
    section=_LOGS,
    unset={},
    is_mapping=True,
    is_reloadable=True,
    help="start with this server parameter; may be given several times",
)

_OF_ROUTER: Final = (
    OTLP_ENDPOINT,
    Option(
        name="trace-sample-ratio",
        path="shardwright.tracing.sampleRatio",
        type=ValueType(parse_ratio, {"type": "number", "minimum": 0, "maximum": 1}, "RATIO"),
        section=_TRACING,
        default="0",
        help="share to trace of the operations whose clients do not name a trace",
    ),
    Option(
        name="configdb",
        path="sharding.configDB",
        type=text_type(partial(parse_replica_set, default_port=CONFIG_SERVER_PORT), "SET/HOST:PORT,…"),
        section=_ROUTER,
        is_required=True,
        help="the replica set of the config servers",
    ),
    Option(
        name="config-seconds",
        path="shardwright.limits.configSeconds",
        type=SECONDS,
        section=_ROUTER,
        default=f"{CATALOG_SECONDS:g}",
        help="how long the config servers have to answer a read of the catalog",
    ),
    Option(
        name="workers",
        path="shardwright.workers",
        type=ValueType(
            partial(parse_number_up_to, WORKERS_MAX), {"type": "integer", "minimum": 1, "maximum": WORKERS_MAX}, "N"
        ),
        section=_ROUTER,
        default="1",
        help=f"processes that share the port, at most {WORKERS_MAX}",
    ),
)

ROUTER: Final = Program.of(
    "shardwright-router",
    "The router of a sharded cluster, which clients connect to.",
    27017,
    (*COMMON, *_OF_ROUTER, PARAMETERS, *AUDIT),
)
SHARDD: Final = Program.of(
    "shardwright-shardd",
    "The shard daemon, which runs in front of each mongod of a shard.",
    27018,
    (*COMMON, OTLP_ENDPOINT, *SIDECAR, PARAMETERS),
    "shardsvr",
)
CONFIGD: Final = Program.of(
    "shardwright-configd",
    "The config daemon, which runs in front of each mongod of the config servers.",
    27019,
    (*COMMON, *SIDECAR),
    "configsvr",
)

PROGRAMS: Final = (ROUTER, SHARDD, CONFIGD)
