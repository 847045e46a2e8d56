"""The lifecycle of a daemon process: logs, listening sockets, serving, metrics, and orderly shutdown at a signal.

A changed configuration is applied to the running process, except for options that need a restart.
"""

import argparse
import gc
import os
import resource
import socket
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, Protocol

import trio

from shardwright.daemon.authentication import read_key_file
from shardwright.daemon.certificates import RotationSignals, tls_settings, watch_expiry
from shardwright.daemon.http import HealthServer, serve_http
from shardwright.daemon.log_formats import REDACTION
from shardwright.daemon.logs import DaemonLogs, configure_logs, log_uncaught_exceptions, set_level
from shardwright.daemon.metrics import Metrics, measure_lag, measure_process
from shardwright.daemon.option_values import check_exposure, known_address
from shardwright.daemon.process_environment import (
    EXIT_NEED_DOWNGRADE,
    ServiceManager,
    UnfitClusterError,
    forbid_core_dumps,
    pid_file,
)
from shardwright.daemon.signals import LogAction, obey_log_signals, wait_for_end
from shardwright.wire.host_and_port import HostAndPort
from shardwright.wire.limits import CONNECTIONS_MAX
from shardwright.wire.logger import get_logger
from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.answers import Handler
from shardwright.wire.transport.cluster_auth import ClusterAuth
from shardwright.wire.transport.reactor import REACTOR
from shardwright.wire.transport.reply_memory import UnreadReplies
from shardwright.wire.transport.reservations import UnreadBounds
from shardwright.wire.transport.server import Server
from shardwright.wire.transport.transport import LocalSockets, Timeouts, Transport, socket_path
from shardwright.wire.transport.unauthenticated_clients import NewcomerLimits, Newcomers

logger = get_logger("daemon.run")

_BACKLOG: Final = 4096
_GARBAGE_THRESHOLDS: Final = (50_000, 20, 50)
"""Requests leave no reference cycles, so the collector's default of a run every 700 objects would be wasted work."""


def unread_bounds(parsed: argparse.Namespace) -> UnreadBounds:
    """Return the limits of `wire.transport.reply_memory`."""
    return UnreadBounds(
        parsed.unread_reply_mb << 20, parsed.unread_reply_mb_per_client << 20, float(parsed.unread_reply_seconds)
    )


def _newcomer_limits(parsed: argparse.Namespace) -> NewcomerLimits:
    """Return the limits of `wire.transport.unauthenticated_clients`."""
    return NewcomerLimits(
        parsed.log_in_seconds,
        parsed.idle_seconds_before_log_in,
        parsed.message_bytes_before_log_in,
        parsed.failed_log_ins,
    )


@dataclass(frozen=True, slots=True)
class Reread:
    """A configuration that was read again.

    Attributes:
        changed: the attributes of changed options that can be applied at run time.
        waiting: the names of changed options that only a restart applies.
    """

    values: argparse.Namespace
    changed: frozenset[str]
    waiting: tuple[str, ...] = ()


ReadAgain = Callable[[], Reread]
"""Reads the configuration again; raises OSError or ValueError, with a message for the operator, if that fails."""


def apply_to_process(reread: Reread) -> None:
    """Apply the options that belong to the process as a whole."""
    values, changed = reread.values, reread.changed
    if "log_level" in changed:
        set_level(values.log_level)
    if "redact_client_log_data" in changed:
        REDACTION.is_on = values.redact_client_log_data


def apply_to_transport(transport: Transport, values: argparse.Namespace) -> None:
    """Apply the options for open and new connections."""
    timeouts = transport.timeouts
    timeouts.hello_seconds, timeouts.selection_seconds = values.hello_seconds, values.selection_seconds
    transport.unread_replies.bounds = unread_bounds(values)


class Daemon(Handler, Protocol):
    """The object that a daemon's `start` function returns."""

    @property
    def metrics(self) -> Metrics:
        """The metrics shown by ``/metrics``."""

    @property
    def shutdown_seconds(self) -> float:
        """Time for which running operations may continue after the signal to shut down."""

    def not_ready_reason(self) -> str | None:
        """Return the reason why clients cannot be served at the moment; None if they can."""

    def serving(self, server: Server) -> None:
        """Prepare for clients; called before the first one is served."""

    async def rotate_certificates(self, message: str) -> None:
        """Reload certificates for new connections; at SIGHUP with TLS.

        InvalidSSLConfiguration, logged, if one is unusable.
        """

    def reconfigure(self, reread: Reread) -> Sequence[str]:
        """Apply changed options; called at SIGHUP. Return the changed server parameters that only a restart applies."""

    async def begin_shutdown(self, seconds: float) -> None:
        """Prepare the shutdown, after which operations may continue for `seconds`; called before connections close."""


Start = Callable[[Transport, trio.Nursery], Awaitable[Daemon]]


@dataclass(frozen=True, slots=True)
class Introduction:
    """Contents of a process's first log line.

    Attributes:
        options: the given ones, without secrets.
        warnings: about the configuration.
    """

    version: str = "unknown"
    options: Mapping[str, Any] = field(default_factory=dict)
    warnings: Sequence[str] = ()

    def log(self, component: str) -> None:
        """Write the line."""
        logger.info(
            "Starting",
            daemon=component,
            version=self.version,
            pid=os.getpid(),
            host=socket.gethostname(),
            options=dict(self.options),
        )
        for warning in self.warnings:
            logger.warning("The configuration may not mean what it says", error=warning)


def run_daemon(
    component: str,
    arguments: argparse.Namespace,
    start: Start,
    *,
    introduction: Introduction | None = None,
    read_again: ReadAgain | None = None,
    is_main: bool = True,
    reuse_port: bool = False,
    unix_socket: str | None = None,
    secured_sockets: Sequence[str] = (),
    on_log_signal: LogAction | None = None,
) -> int:
    """Run a daemon until a signal shuts it down; return the exit code of the process.

    Args:
        start: creates the daemon; its background tasks run in the given nursery, which is cancelled at the end.
        read_again: reads the configuration again at SIGHUP; None if there is no file.
        is_main: whether this is the process that the service manager started.
        reuse_port: whether several processes share the port, over which the kernel distributes connections.
        unix_socket: path of an additional UNIX socket on which to serve clients.
        secured_sockets: UNIX sockets of other servers that require TLS.
        on_log_signal: called at SIGUSR1; None to rotate the daemon's own log.
    """
    try:
        check_exposure(arguments)
        transport = transport_of(arguments, secured_sockets)
    except OSError as error:
        return explain_start_error(component, error)
    except ValueError as error:
        print(f"{component}: {error}", file=sys.stderr)
        return 1
    unix_sockets = [] if unix_socket is None else [Path(unix_socket)]
    if arguments.unix_socket_directory is not None and not reuse_port:
        unix_sockets.append(socket_path(arguments.unix_socket_directory, known_address(arguments)))
    REDACTION.is_on = arguments.redact_client_log_data
    resources = ExitStack()
    try:
        configure_logs(arguments.log_level, arguments.log_file, arguments.log_rotate, arguments.log_format)
        log_uncaught_exceptions()
        if transport.cluster_auth.is_on or transport.tls.accepting is not None:
            forbid_core_dumps()
        obey_log_signals(on_log_signal or DaemonLogs().rotate)
        listeners = open_listeners(arguments.bind_ip, arguments.port, reuse_port=reuse_port)
        metrics_listeners = open_metrics_listeners(arguments)
        listeners += map(_open_unix_listener, unix_sockets)
        resources.enter_context(pid_file(arguments.pid_file if is_main else None))
    except OSError as error:
        return explain_start_error(component, error)
    (introduction or Introduction()).log(component)
    gc.set_threshold(*_GARBAGE_THRESHOLDS)
    _schedule_as_batch()
    manager = ServiceManager(is_main=is_main)
    life = _Life(component, arguments, transport, start, listeners, metrics_listeners, read_again, manager)
    exit_code = 0
    with resources:
        try:
            trio.run(life.run)
        except* UnfitClusterError as group:
            exit_code = EXIT_NEED_DOWNGRADE
            _explain_refusal(component, group)
        finally:
            for path in unix_sockets:
                path.unlink(missing_ok=True)
    return exit_code


def _explain_refusal(component: str, group: BaseExceptionGroup[UnfitClusterError]) -> None:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    logger.error("This daemon must not run in this cluster", error=str(error))
    print(f"{component}: {error}", file=sys.stderr)


def transport_of(arguments: argparse.Namespace, secured_sockets: Sequence[str] = ()) -> Transport:
    """Create the transport of a process with these options; `secured_sockets` as for `run_daemon`.

    Raises:
        OSError: the key file cannot be read.
        ValueError: as `read_key_file`, `ProcessTls` and `ClusterAuth`.
    """
    tls = ProcessTls(tls_settings(arguments, secured_sockets=frozenset(secured_sockets)))
    keys = () if arguments.key_file is None else read_key_file(arguments.key_file)
    return Transport(
        tls,
        ClusterAuth(tls, arguments.cluster_auth_mode, keys),
        UnreadReplies(unread_bounds(arguments)),
        Timeouts(arguments.hello_seconds, arguments.selection_seconds),
        LocalSockets(arguments.unix_socket_directory),
    )


def explain_start_error(component: str, error: OSError) -> int:
    """Print in one line why a daemon does not start; return its exit code."""
    reason = error.strerror or str(error)
    print(f"{component}: {f'{error.filename}: {reason}' if error.filename else reason}", file=sys.stderr)
    return 1


def _schedule_as_batch() -> None:
    """Use batch scheduling where possible, so that waking this process does not preempt the running one.

    Under load the running process is the mongod, or another daemon, that has just sent a message and is about to send
    more. All its messages are then processed at once, with fewer context switches: about 6 % more operations. If a
    processor is idle nothing changes.
    """
    if sys.platform != "linux" or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return  # the scheduling policy was chosen when the process was started
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError as error:
        logger.info("Could not raise the scheduling priority", error=str(error))


def connections_allowed() -> int:
    """Raise the limit on open files as far as possible, and return the number of clients that it allows.

    As in MongoDB a fifth is reserved for other uses, and each client is assumed to need two descriptors: its own
    connection and one to a mongod or a shard.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return CONNECTIONS_MAX if hard == resource.RLIM_INFINITY else max(int(hard * 0.8) // 2, 1)


def open_metrics_listeners(arguments: argparse.Namespace) -> list[socket.socket]:
    """Open the listening sockets for metrics; none without ``--metrics-port``. Errors as `open_listeners`."""
    return [] if arguments.metrics_port is None else open_listeners(arguments.metrics_bind_ip, arguments.metrics_port)


def open_listeners(addresses: Sequence[str], port: int, *, reuse_port: bool = False) -> list[socket.socket]:
    """Open listening sockets on every address, or none if one fails (OSError)."""
    listeners: list[socket.socket] = []
    try:
        for address in addresses:
            family = socket.AF_INET6 if ":" in address else socket.AF_INET
            listener = socket.socket(family, socket.SOCK_STREAM)
            listeners.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6 and any(":" not in each for each in addresses):
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)  # or "::" would use IPv4's port too
            if reuse_port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            try:
                listener.bind((address, port))
            except (OSError, UnicodeError) as error:  # the latter for an impossible host name
                number, reason = (error.errno, error.strerror) if isinstance(error, OSError) else (None, error)
                raise OSError(number, f"cannot listen on {HostAndPort(address, port)}: {reason}") from error
            listener.listen(_BACKLOG)
    except BaseException:
        for listener in listeners:
            listener.close()
        raise
    return listeners


def _open_unix_listener(path: Path) -> socket.socket:
    """Open a UNIX socket that only this user can connect to; OSError if that fails, as for a long path."""
    path.unlink(missing_ok=True)  # left by a process that was killed
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        path.chmod(0o700)
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise OSError(error.errno, f"cannot listen on {path}: {error.strerror or error}") from error
    return listener


class _Life:
    """A daemon from the start of its tasks until they have ended."""

    def __init__(
        self,
        component: str,
        arguments: argparse.Namespace,
        transport: Transport,
        start: Start,
        listeners: Sequence[socket.socket],
        metrics_listeners: Sequence[socket.socket],
        read_again: ReadAgain | None,
        manager: ServiceManager,
    ) -> None:
        self._component = component
        self._arguments = arguments
        self._transport = transport
        self._start = start
        self._listeners = listeners
        self._metrics_listeners = metrics_listeners
        self._read_again = read_again
        self._manager = manager
        self._hang_ups = RotationSignals()

    async def run(self) -> None:
        stop = trio.Event()
        tls = self._transport.tls
        obeys_hang_ups = tls.accepting is not None or self._read_again is not None
        async with trio.open_nursery() as nursery:
            await nursery.start(wait_for_end, stop, self._hang_ups.note if obeys_hang_ups else None)
            if tls.accepting is not None:
                nursery.start_soon(watch_expiry, tls)
            nursery.start_soon(self._serve, stop, nursery.cancel_scope)
        logger.info("Stopped", daemon=self._component)

    async def _serve(self, stop: trio.Event, whole_process: trio.CancelScope) -> None:
        REACTOR.start()
        arguments = self._arguments
        async with trio.open_nursery() as nursery:
            daemon = await self._start(self._transport, nursery)
            connections_max = arguments.max_connections or connections_allowed()
            may_log_in = self._transport.cluster_auth.is_on
            newcomers = Newcomers(_newcomer_limits(arguments), connections_max) if may_log_in else None
            server = Server(
                self._transport,
                daemon,
                connections_max=connections_max,
                newcomers=newcomers,
                handshakes_max=arguments.handshakes_max,
            )
            nursery.start_soon(self._hang_ups.obey, partial(self._hang_up, daemon, server))
            daemon.serving(server)
            nursery.start_soon(measure_lag, measure_process(daemon.metrics, self._transport.tls))
            if self._metrics_listeners:
                health = HealthServer(daemon.metrics, daemon.not_ready_reason)
                nursery.start_soon(serve_http, health, self._metrics_listeners)
            await nursery.start(server.serve, self._listeners)
            gc.collect()
            gc.freeze()
            addresses = [str(listener.getsockname()) for listener in self._listeners]
            logger.info("Listening", daemon=self._component, addresses=addresses)
            self._manager.ready()
            nursery.start_soon(self._manager.report, daemon.not_ready_reason)
            await stop.wait()
            logger.info("Shutting down", daemon=self._component, connections=len(server.clients))
            self._manager.stopping()
            seconds = self._arguments.shutdown_seconds or daemon.shutdown_seconds
            await daemon.begin_shutdown(seconds)
            await server.drain(seconds)
            whole_process.cancel()

    async def _hang_up(self, daemon: Daemon, server: Server, message: str) -> None:
        self._manager.reloading()
        try:
            if self._read_again is not None:
                self._reconfigure(self._read_again, daemon, server)
            if self._transport.tls.accepting is not None:
                await daemon.rotate_certificates(message)
        finally:
            self._manager.ready()

    def _reconfigure(self, read_again: ReadAgain, daemon: Daemon, server: Server) -> None:
        try:
            reread = read_again()
        except (OSError, ValueError) as error:
            logger.error("Could not read the configuration again; nothing was changed", error=str(error))
            return
        self._arguments = reread.values
        apply_to_process(reread)
        apply_to_transport(self._transport, reread.values)
        if "max_connections" in reread.changed:
            server.connections_max = reread.values.max_connections or connections_allowed()
        waiting = [*reread.waiting, *daemon.reconfigure(reread)]
        logger.info("Read the configuration again", changed=sorted(reread.changed), after_restart=waiting)
