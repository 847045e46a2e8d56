"""How a router was started, the version of MongoDB that it emulates, and its fail points."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.daemon.audit.log import AuditLog
from shardwright.daemon.fail_command import FAIL_COMMAND
from shardwright.daemon.log_rotation import DaemonLogs
from shardwright.wire.host_and_port import ConnectionString
from shardwright.wire.transport.pool import PoolOptions


@dataclass(frozen=True, slots=True)
class RouterOptions:
    """The options of ``shardwright-router`` beyond those that all daemons have.

    Attributes:
        config_servers: their replica set.
        address: ``host:port`` under which this router is registered in ``config.mongos``.
        arguments: the command line, for ``getCmdLineOpts``.
        given: the options that some source sets, in sections, for the same command.
        worker_index: which of several processes that share the port this one is.
        worker_sockets: paths of the UNIX sockets of all of them by index; empty for a single process.
        supervisor: pid of the process that started it, if it is one of several.
        slow_ms: operations that take longer are logged.
        shutdown_seconds: how long operations may continue after the signal to shut down, None for the parameter
            ``mongosShutdownTimeoutMillisForSignaledShutdown``.
        config_seconds: how long a read of the catalog may take.
        parameters: server parameters with the values that they have from the start, as text.
        audit: the audit log; None if nothing is audited.
        logs: the logs of this process.
        pool: bounds of the connection pools to shards.
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
    logs: DaemonLogs = field(default_factory=DaemonLogs)
    pool: PoolOptions = field(default_factory=PoolOptions)


MONGODB_VERSION: Final = "6.0.5"
"""The version reported to clients: features and behaviour are MongoDB 6.0's."""

MONGODB_VERSION_ARRAY: Final = (6, 0, 5, 0)


FAIL_GET_MORE: Final = "failGetMoreAfterCursorCheckout"
"""Fails a ``getMore`` that has found its cursor, which ends the cursor."""

HANG_BEFORE_MOVING_DOCUMENT: Final = "hangAfterThrowWouldChangeOwningShardRetryableWrite"
"""Makes a retryable write wait that a shard has refused because a document would leave it, before its transaction."""

FAIL_POINT_NAMES: Final = frozenset({FAIL_COMMAND, FAIL_GET_MORE, HANG_BEFORE_MOVING_DOCUMENT})
