"""Starting, stopping and watching the processes of one cluster by name: command lines, readiness, core dumps.

Processes do not announce readiness, so callers poll for it at short intervals until a deadline.

The memory of the launcher and of the mongods that it starts has the keys of the cluster, so it must not be in a core
dump. There are no core files, and no memory in the dump that the kernel pipes to a program (``core(5)``). The daemons
forbid their own core dumps in the same way.
"""

import http.client
import os
import resource
import signal
import socket
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final, NamedTuple

from shardwright.deploy.access import daemon_words, mongod_words
from shardwright.deploy.cluster_state import (
    ClusterState,
    option_words,
    parameters_of_config_mongod,
    parameters_of_daemon,
    parameters_of_mongod,
    parameters_of_router,
)
from shardwright.deploy.errors import DeployError
from shardwright.deploy.layout import Layout, check_ownership
from shardwright.deploy.mongod import POLL_INTERVAL, mongod_arguments
from shardwright.deploy.processes import (
    PidFile,
    ProcessIdentity,
    exit_description,
    load_pid_file,
    mark,
    marked_processes,
    save_pid_file,
    spawn,
)
from shardwright.deploy.topology import CONFIG_SET, ProcessPlan, Role

# Seconds that a process may take to end by itself; longer than a router waits for running operations.
STOP_TIMEOUT = 30.0

# Clients first, data last, so that each process still has its dependencies while it stops.
STOP_ORDER = (Role.ROUTER, Role.SHARDD, Role.CONFIGD, Role.MONGOD)

ENDING_SIGNALS = (
    *(signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP),
    *(signal.SIGQUIT, signal.SIGABRT),
)

# These would kill a daemon that is still importing its modules; it handles them once it has opened its log.
LOG_SIGNALS = (signal.SIGUSR1, signal.SIGUSR2)

CONFIGURATION_VARIABLE = "SHARDWRIGHT_CONFIG"

LOG_LINES_SHOWN = 5

# Seconds that one check may take.
LOOK_TIMEOUT = 2.0

_COREDUMP_FILTER: Final = Path("/proc/self/coredump_filter")
_NO_MEMORY: Final = "0"


class Supervisor:
    """Starts and stops the processes of the cluster described by ``state``, and records them in pid files."""

    def __init__(self, layout: Layout, state: ClusterState) -> None:
        self._layout = layout
        self._state = state
        self._directory = layout.identity()
        self._unrecorded: dict[str, ProcessIdentity] = {}

    def find_unrecorded(self) -> list[str]:
        """Find running processes without a pid file, because ``up`` was killed or a file was damaged.

        Returns:
            Sentences that describe the problems with pid files.
        """
        marked = marked_processes(self._directory)
        complaints = []
        for plan in self._state.topology.processes:
            found = self._pid_file(plan)
            if plan.name in marked and (found.identity is None or not found.identity.is_running()):
                self._unrecorded[plan.name] = marked[plan.name]
            if found.damage is not None:
                known = "its process is running" if plan.name in marked else "its process is not running"
                complaints.append(f"{self._layout.pid_file(plan.name)} is damaged ({found.damage}); {known}")
        return complaints

    def originals(self) -> list[str]:
        """Return the directories from which the pid files were copied and whose processes are running."""
        found = (self._pid_file(plan).original for plan in self._state.topology.processes)
        return sorted({path for path in found if path is not None})

    def identity(self, plan: ProcessPlan) -> ProcessIdentity | None:
        """Return the current or last process of ``plan``; ``None`` if it was never started or deliberately stopped."""
        return self._unrecorded.get(plan.name) or self._pid_file(plan).identity

    def running(self, plan: ProcessPlan) -> ProcessIdentity | None:
        """Return the process now running for ``plan``, or ``None``."""
        identity = self.identity(plan)
        return identity if identity is not None and identity.is_running() else None

    def start(self, plan: ProcessPlan) -> None:
        """Start a process, without waiting until it is ready.

        Raises:
            DeployError: it cannot be started, or another user may write to the directory (`check_ownership`).
        """
        check_ownership(self._layout, self._state)
        arguments = self._arguments(plan)
        if self._state.has_access_control or self._state.has_tls:
            _forbid_core_dumps()
        try:
            identity = spawn(
                arguments,
                self._output(plan),
                # The user's environment may name a file for another cluster's daemons.
                {**mark(self._directory, plan.name), CONFIGURATION_VARIABLE: ""},
                directory=self._state.sockets if plan.role is Role.MONGOD else None,
                masked_signals=() if plan.role is Role.MONGOD else LOG_SIGNALS,
            )
        except OSError as error:
            raise DeployError(f"{plan.name} cannot be started: {error}") from error
        self._unrecorded[plan.name] = identity  # so that it is stopped if it cannot be recorded
        save_pid_file(self._layout.pid_file(plan.name), identity, self._layout.root, self._directory)
        del self._unrecorded[plan.name]

    def wait_ready(self, plans: Iterable[ProcessPlan], deadline: float) -> None:
        """Wait until every process is ready.

        Raises:
            DeployError: one has ended, or is not ready when ``time.monotonic()`` reaches ``deadline``.
        """
        for plan in plans:
            while not _is_ready(plan, self._state.address(plan)):
                self._check_still_starting(plan, deadline)
                time.sleep(POLL_INTERVAL)
            # The answer might have come from an unrelated process on the same port.
            self._check_still_starting(plan, deadline)

    def signal(self, plan: ProcessPlan, number: signal.Signals) -> None:
        """Send a signal, and wait for the end or pause of the process if the signal causes one.

        Raises:
            DeployError: it is not running, or survived the signal.
        """
        identity = self.running(plan)
        if identity is None or not identity.send(number):
            raise DeployError(f"{plan.name} is not running")
        if _ends(plan, number, has_tls=self._state.has_tls) and not identity.wait_ended(STOP_TIMEOUT):
            raise DeployError(f"{plan.name} is still running {STOP_TIMEOUT:.0f} s after {number.name}")
        if number is signal.SIGSTOP and not identity.wait_paused(STOP_TIMEOUT):
            raise DeployError(f"{plan.name} is still running {STOP_TIMEOUT:.0f} s after {number.name}")

    def stop(self, plans: Iterable[ProcessPlan]) -> list[str]:
        """Stop processes at the same time.

        Returns:
            The names of the processes that had to be killed.
        """
        plans = list(plans)
        ending = [(plan, identity) for plan in plans if (identity := self.running(plan)) is not None]
        for _, identity in ending:
            identity.send(signal.SIGTERM)
            # A paused process handles signals only after it continues.
            identity.send(signal.SIGCONT)
        deadline = time.monotonic() + STOP_TIMEOUT
        killed = []
        for plan, identity in ending:
            if not identity.wait_ended(max(0.0, deadline - time.monotonic())):
                killed.append(plan.name)
                identity.send(signal.SIGKILL)
                identity.wait_ended(STOP_TIMEOUT)
        self.forget(plans)
        return killed

    def forget(self, plans: Iterable[ProcessPlan]) -> None:
        """Remove the pid files of processes that have ended, even damaged ones."""
        for plan in plans:
            self._unrecorded.pop(plan.name, None)
            self._layout.pid_file(plan.name).unlink(missing_ok=True)

    def restart(self, plan: ProcessPlan, deadline: float) -> None:
        """Stop a process if it is running, start it again and wait until it is ready."""
        self.stop([plan])
        self.start(plan)
        self.wait_ready([plan], deadline)

    def _arguments(self, plan: ProcessPlan) -> list[str]:
        if plan.role is not Role.MONGOD:
            return daemon_arguments(self._layout, self._state, plan)
        of_mongod = parameters_of_config_mongod if plan.replica_set == CONFIG_SET else parameters_of_mongod
        return mongod_arguments(
            self._state.mongod,
            plan,
            dbpath=self._layout.data(plan.name),
            log=self._layout.log(plan.name),
            sockets=self._state.sockets,
            cache_gb=self._state.cache_gb,
            parameters=of_mongod(self._state.parameters),
            log_rotate=self._state.log_rotate,
            auth_words=self._auth_words(),
            tls_words=self._layout.tls.mongod_words() if self._state.has_tls else (),
        )

    def _auth_words(self) -> list[str]:
        if not self._state.has_access_control:
            return []
        return mongod_words(self._state.cluster_auth_mode, self._layout.access.key_file)

    def _pid_file(self, plan: ProcessPlan) -> PidFile:
        return load_pid_file(self._layout.pid_file(plan.name), self._layout.log(plan.name), self._directory)

    def _output(self, plan: ProcessPlan) -> Path:
        """Return the file for a process's output: a daemon's log, but not a mongod's, which may be renamed."""
        return self._layout.output(plan.name) if plan.role is Role.MONGOD else self._layout.log(plan.name)

    def _check_still_starting(self, plan: ProcessPlan, deadline: float) -> None:
        identity = self.identity(plan)
        if identity is None:
            raise DeployError(f"{plan.name} was stopped while it was starting")
        if not identity.is_running():
            raise DeployError(f"{plan.name} {exit_description(identity)} while starting; {self._last_words(plan)}")
        if time.monotonic() > deadline:
            raise DeployError(f"{plan.name} was not ready in time; {self._last_words(plan)}")

    def _last_words(self, plan: ProcessPlan) -> str:
        log = self._layout.log(plan.name)
        lines: list[str] = []
        for path in dict.fromkeys((log, self._output(plan))):
            lines += path.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:] if path.exists() else []
        return f"the end of {log}:" + "".join(f"{os.linesep}    {line}" for line in lines)


def _ends(plan: ProcessPlan, number: signal.Signals, *, has_tls: bool) -> bool:
    """Whether a signal ends a process."""
    if number == signal.SIGHUP and has_tls and plan.role is not Role.MONGOD:
        return False  # a daemon reloads its certificates
    return number in ENDING_SIGNALS


def daemon_arguments(layout: Layout, state: ClusterState, plan: ProcessPlan) -> list[str]:
    """Return the command line of a configd, shardd or router, with the interpreter and packages of this launcher."""
    assert plan.metrics_port is not None
    common = [
        # -P: Python must not import a folder in the current directory that has the name of one of our packages.
        *(sys.executable, "-P", "-m", f"shardwright.{plan.role}.main"),
        *("--port", str(plan.port)),
        *("--metrics-port", str(plan.metrics_port)),
        *("--log-file", str(layout.log(plan.name))),
        *("--log-rotate", state.log_rotate),
        *("--unix-socket-directory", str(state.sockets_of(plan.name))),
        *(daemon_words(state.cluster_auth_mode, layout.access.key_file) if state.has_access_control else ()),
        *(layout.tls.daemon_words() if state.has_tls else ()),
        *option_words(state.daemon_options.get(plan.role, {})),
    ]
    if plan.role is Role.ROUTER:
        parameters = parameters_of_router(state.parameters)
        of_router = ("--configdb", state.topology.config_string, "--workers", str(state.workers))
        return [*common, *of_router, *_parameter_words(parameters)]
    mongod = state.topology.mongod_behind(plan)
    parameters = parameters_of_daemon(state.parameters) if plan.role is Role.SHARDD else {}
    return [
        *common,
        *("--mongod-socket", str(state.mongod_socket(mongod))),
        *("--mongod-address", mongod.address),
        *(("--mongod-tls",) if state.has_tls else ()),
        *_parameter_words(parameters),
    ]


def _parameter_words(parameters: Mapping[str, str]) -> list[str]:
    return [word for name, value in parameters.items() for word in ("--set-parameter", f"{name}={value}")]


def _is_ready(plan: ProcessPlan, address: str) -> bool:
    """Whether clients can use the process: a mongod listens, or a daemon's ``/readyz`` succeeds."""
    if plan.role is Role.MONGOD:
        return _is_listening(address)
    assert plan.metrics_port is not None
    return _answers_ready(plan.metrics_port)


def _is_listening(address: str) -> bool:
    host, _, port = address.rpartition(":")
    family, target = (socket.AF_INET, (host, int(port))) if port.isdecimal() else (socket.AF_UNIX, address)
    with socket.socket(family) as connection:
        connection.settimeout(LOOK_TIMEOUT)
        return connection.connect_ex(target) == 0


def _answers_ready(metrics_port: int) -> bool:
    answer = ask(f"127.0.0.1:{metrics_port}", "/readyz")
    return answer is not None and answer.status == http.HTTPStatus.OK


class Answer(NamedTuple):
    """The answer of a daemon's HTTP endpoint.

    Attributes:
        version: the daemon's version; empty if the headers lack it.
    """

    status: int
    version: str
    text: str


def ask(address: str, path: str, seconds: float = LOOK_TIMEOUT) -> Answer | None:
    """Request a page of a daemon's HTTP endpoint; None if there is no answer in time.

    Args:
        path: ``/metrics``, ``/healthz`` or ``/readyz``.
        seconds: the limit for each step.
    """
    connection = http.client.HTTPConnection(address, timeout=seconds)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        server = response.getheader("Server") or ""
        return Answer(response.status, server.partition("/")[2], response.read().decode())
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def _forbid_core_dumps() -> None:
    """Keep the memory of this process and of its future children out of core dumps."""
    try:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        _COREDUMP_FILTER.write_text(_NO_MEMORY)
    except OSError as error:
        raise DeployError(f"cannot keep the keys out of core dumps: {error}") from error
