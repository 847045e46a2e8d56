"""The start options of a router, the version of MongoDB that it emulates, and its fail points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.daemon.audit_log import AuditLog
from shardwright.daemon.fail_command import FAIL_COMMAND
from shardwright.daemon.logs import DaemonLogs
from shardwright.daemon.tracing import TracingOptions
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.transport.pool import PoolOptions


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """The options of ``shardwright-router`` beyond those that all daemons have.

    Attributes:
        address: ``host:port`` under which this router is registered in ``config.mongos``.
        arguments: the command line, for ``getCmdLineOpts``.
        given: the options set by any source, in sections, for the same command.
        worker_index: the index of this process among the router's processes.
        worker_sockets: paths of the UNIX sockets of all processes by index; empty for a single process.
        supervisor: pid of the supervisor, if the router has several processes.
        slow_ms: operations that take longer are logged.
        shutdown_seconds: how long operations may continue after the signal to shut down, None for the parameter
            ``mongosShutdownTimeoutMillisForSignaledShutdown``.
        config_seconds: time limit of a read from the catalog.
        audit: the audit log; None if auditing is off.
        tracing: the export of spans; None if tracing is off.
    """

    config_servers: ConnectionString
    address: str
    arguments: tuple[str, ...] = ()
    given: Mapping[str, Any] = field(default_factory=dict)
    worker_index: int = 0
    worker_sockets: tuple[str, ...] = ()
    supervisor: int | None = None
    slow_ms: float = 100.0
    shutdown_seconds: float | None = None
    config_seconds: float = 30.0
    parameters: Mapping[str, str] = field(default_factory=dict)
    audit: AuditLog | None = None
    tracing: TracingOptions | None = None
    logs: DaemonLogs = field(default_factory=DaemonLogs)
    pool: PoolOptions = field(default_factory=PoolOptions)


MONGODB_VERSION: Final = "6.0.5"
"""The version reported to clients: features and behaviour are MongoDB 6.0's."""

MONGODB_VERSION_ARRAY: Final = (6, 0, 5, 0)


FAIL_GET_MORE: Final = "failGetMoreAfterCursorCheckout"
"""Fails a ``getMore`` after the cursor is checked out, which ends the cursor."""

HANG_BEFORE_MOVING_DOCUMENT: Final = "hangAfterThrowWouldChangeOwningShardRetryableWrite"
"""Pauses a retryable write before its transaction, after a shard has refused it with ``WouldChangeOwningShard``."""

FAIL_POINT_NAMES: Final = frozenset({FAIL_COMMAND, FAIL_GET_MORE, HANG_BEFORE_MOVING_DOCUMENT})
