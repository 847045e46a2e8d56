"""Several router processes behind one port, over which the kernel spreads connections.

The process that was started keeps the workers running and forwards signals. It stops restarting workers if too many
crash. A cursor lives in one worker, which its id identifies. Each worker also listens on a UNIX socket of its own,
where its siblings forward requests about its cursors (`forward_to_holder`).
"""

import argparse
import errno
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

import trio

from shardwright.daemon.certificates import ROTATION_SIGNAL
from shardwright.daemon.configuration.configuration import COPY_OF_FILE, Configuration
from shardwright.daemon.configuration.option import HIDDEN, NUMBER, PATH, Option
from shardwright.daemon.configuration.process import Check, Rereading, introduction
from shardwright.daemon.configuration.table import ROUTER
from shardwright.daemon.logs import DaemonLogs, configure_logs, log_uncaught_exceptions
from shardwright.daemon.process_environment import EXIT_NEED_DOWNGRADE as UNFIT_CLUSTER
from shardwright.daemon.process_environment import ServiceManager, pid_file
from shardwright.daemon.run import apply_to_process, explain_start_error, open_listeners
from shardwright.daemon.signal_mask import ROTATED_SIGNAL, log_signals_masked
from shardwright.daemon.signals import LogAction, ending_signals, obey_ending_signals, obey_log_signals, run_log_action
from shardwright.router.context.options import RouterOptions
from shardwright.router.context.router_context import RouterContext
from shardwright.router.cursors.open_cursor import worker_of
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.tls import ProcessTls, TlsMode

logger = get_logger("router.workers")

CRASHES_MAX: Final = 10
WINDOW_SECONDS: Final = 60.0

PORT_MAX: Final = 65_535

_INTERPRETER: Final = (sys.executable, "-P")
"""The interpreter. -P prevents imports from the working directory in place of this package's."""

WORKER_OPTIONS: Final = tuple(
    Option(name=name, path="", type=value_type, section=HIDDEN, help="how the first process starts the others")
    for name, value_type in (
        ("worker-index", NUMBER),
        ("worker-directory", PATH),
        ("worker-supervisor", NUMBER),
        (COPY_OF_FILE, PATH),
    )
)


class CrashRate:
    """The crashes of the last minute, of all workers of a router.

    A router lives for years, and each worker may crash now and then. Many crashes in a short time, however, indicate a
    fault in the machine or the configuration.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def note(self, now: float) -> None:
        """Record the crash of a worker.

        Args:
            now: in seconds, on a monotonic clock.
        """
        self._times.append(now)
        while self._times[0] <= now - WINDOW_SECONDS:
            self._times.popleft()

    @property
    def is_too_high(self) -> bool:
        """Whether there were more than `CRASHES_MAX` crashes within `WINDOW_SECONDS`, up to the latest one."""
        return len(self._times) > CRASHES_MAX


def worker_sockets(parsed: argparse.Namespace) -> tuple[str, ...]:
    """Return the UNIX sockets of all workers by index; empty for a single process."""
    if parsed.worker_directory is None:
        return ()
    return tuple(str(parsed.worker_directory / f"worker-{index}.sock") for index in range(parsed.workers))


def run_workers(found: Configuration, logs: DaemonLogs, check: Check | None = None) -> int:
    """Run the workers until a signal ends them; return the exit code.

    Args:
        logs: the files that this process shares with the workers.
        check: refuses options that do not fit together.
    """
    parsed, resources = found.values, ExitStack()
    try:
        configure_logs(parsed.log_level, parsed.log_file, parsed.log_rotate, parsed.log_format)
        log_uncaught_exceptions()
        _check_addresses(parsed)
        resources.enter_context(pid_file(parsed.pid_file))
        directory = Path(resources.enter_context(tempfile.TemporaryDirectory(prefix="shardwright-router-")))
        file = None if found.file is None else _SharedFile(found, directory / "options.yaml", check)
    except OSError as error:
        resources.close()
        return explain_start_error(ROUTER.name, error)
    introduction(found).log(ROUTER.name)
    with resources:
        return _Supervisor(found, directory, logs, file).run()


class _SharedFile:
    """The copy of the options file that workers read, so that a mistake in the file reaches none of them.

    Args:
        check: see `run_workers`.

    Raises:
        OSError: the file cannot be copied.
    """

    def __init__(self, found: Configuration, path: Path, check: Check | None) -> None:
        self.path = path
        self._found = found
        self._read_again = Rereading(found, check)
        self._copy()

    def renew(self) -> None:
        """Copy the file again, unless it contains a mistake."""
        try:
            reread = self._read_again()
            self._copy()
        except (OSError, ValueError) as error:
            logger.error("Could not read the configuration again; nothing was changed", error=str(error))
            return
        apply_to_process(reread)

    def _copy(self) -> None:
        assert self._found.file is not None
        unfinished = self.path.with_suffix(".new")
        shutil.copyfile(self._found.file, unfinished)
        unfinished.replace(self.path)


def _check_addresses(parsed: argparse.Namespace) -> None:
    """Check once, rather than in each worker, that the ports can be listened on.

    Raises:
        OSError: one cannot.
    """
    if parsed.metrics_port and parsed.metrics_port + parsed.workers - 1 > PORT_MAX:
        raise OSError(
            errno.EINVAL, f"--metrics-port {parsed.metrics_port} leaves no ports for the metrics of all workers"
        )
    listeners = open_listeners(parsed.bind_ip, parsed.port, reuse_port=True)
    try:
        for index in range(parsed.workers if parsed.metrics_port else 0):
            listeners += open_listeners(parsed.metrics_bind_ip, parsed.metrics_port + index)
    finally:
        for listener in listeners:
            listener.close()


async def end_with_supervisor() -> None:
    """Begin the shutdown of this worker when the supervisor has ended."""
    standard_input = sys.stdin.fileno()
    os.set_blocking(standard_input, False)
    await trio.lowlevel.wait_readable(standard_input)
    logger.warning("The supervising process ended")
    os.kill(os.getpid(), signal.SIGTERM)


def tell_supervisor_logs_were_rotated(options: RouterOptions) -> None:
    """Notify the supervisor, if any, to reopen the logs, also in its other workers."""
    if options.supervisor is not None and os.getppid() == options.supervisor:
        os.kill(options.supervisor, ROTATED_SIGNAL)


def tell_supervisor_certificates_changed(options: RouterOptions, tls: ProcessTls) -> None:
    """Notify the supervisor, if any, to make all workers read their certificates again; without TLS, do nothing."""
    if tls.accepting is not None and options.supervisor is not None and os.getppid() == options.supervisor:
        os.kill(options.supervisor, ROTATION_SIGNAL)


def end_router(options: RouterOptions) -> None:
    """Begin the shutdown of all processes of this router."""
    is_worker = options.supervisor is not None and os.getppid() == options.supervisor
    os.kill(options.supervisor if is_worker and options.supervisor else os.getpid(), signal.SIGTERM)


def holder_socket(options: RouterOptions, cursor_id: int) -> str | None:
    """Return the UNIX socket of the worker that holds a cursor; None for this worker or an unknown one."""
    holder = worker_of(cursor_id)
    if holder == options.worker_index or holder is None or holder >= len(options.worker_sockets):
        return None
    return options.worker_sockets[holder]


async def forward_to_holder(context: RouterContext, cursor_id: int, frame: bytes) -> bytes | None:
    """Forward a request to the worker that holds its cursor and return the reply; None if that is this worker.

    Raises:
        CommandError: CursorNotFound, the worker no longer exists.
    """
    socket = holder_socket(context.options, cursor_id)
    if socket is None:
        return None
    try:
        return await context.pools[socket].exchange(frame)
    except BackendError as error:
        raise CommandError(ErrorCode.CursorNotFound, f"cursor id {cursor_id} not found") from error


class _Supervisor:
    def __init__(self, found: Configuration, directory: Path, logs: DaemonLogs, file: _SharedFile | None) -> None:
        self._parsed = found.values
        self._arguments = found.words
        self._directory = directory
        self._logs = logs
        self._file = file
        self._manager = ServiceManager()
        self._processes: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._is_stopping = False

    def run(self) -> int:
        for received in ending_signals():
            signal.signal(received, lambda number, _: self._stop(number))
        if self._file is not None or self._parsed.tls_mode is not TlsMode.DISABLED:
            signal.signal(ROTATION_SIGNAL, lambda number, _: self._hang_up(number))
        self._feed_watchdog()
        signal.signal(ROTATED_SIGNAL, lambda *_: run_log_action(partial(self._change_logs, self._logs.reopen)))
        obey_log_signals(partial(self._change_logs, self._logs.rotate))
        for index in range(self._parsed.workers):
            self._start(index)
        obey_ending_signals()  # only now, because signals are forwarded to workers
        crashes = CrashRate()
        exit_code = 0
        while self._processes:
            pid, status = os.wait()
            index, _ = self._processes.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if self._is_stopping:
                continue
            crashes.note(monotonic())
            logger.error("A worker ended unexpectedly", worker=index, exit_code=code)
            if crashes.is_too_high or code in (1, UNFIT_CLUSTER):  # 1: it could not even start
                exit_code = UNFIT_CLUSTER if code == UNFIT_CLUSTER else 1
                self._stop(signal.SIGTERM)
            else:
                self._start(index)
        # Must precede the interpreter's removal of the handler, after which the signal would end this process.
        signal.setitimer(signal.ITIMER_REAL, 0)
        return exit_code

    def _start(self, index: int) -> None:
        command = [*_INTERPRETER, "-m", "shardwright.router.main", *self._arguments]
        command += ["--worker-index", str(index), "--worker-directory", str(self._directory)]
        if self._file is not None:
            command += ["--worker-config", str(self._file.path)]
        # The number of workers is part of their addresses, and may change in the file while they run.
        command += ["--worker-supervisor", str(os.getpid()), "--workers", str(self._parsed.workers)]
        if self._parsed.metrics_port:
            command += ["--metrics-port", str(self._parsed.metrics_port + index)]
        # The worker's end of the pipe is closed when this process ends for any reason.
        with log_signals_masked():
            process = subprocess.Popen(command, process_group=0, stdin=subprocess.PIPE)
        self._processes[process.pid] = (index, process)
        if self._is_stopping:  # the shutdown began before the process was in the list
            os.kill(process.pid, signal.SIGTERM)

    def _change_logs(self, change: LogAction) -> None:
        """Rotate or reopen the logs, and move the workers to the new files."""
        try:
            change()
        finally:
            self._signal_workers(signal.SIGUSR1)

    def _hang_up(self, number: int) -> None:
        self._manager.reloading()
        if self._file is not None:
            self._file.renew()
        self._signal_workers(number)
        self._manager.ready()

    def _feed_watchdog(self) -> None:
        """Notify the service manager from a timer's handler, which runs while this process waits for its workers."""
        if self._manager.watchdog_seconds is not None:
            signal.signal(signal.SIGALRM, lambda *_: self._manager.alive())
            pause = self._manager.watchdog_seconds / 2
            signal.setitimer(signal.ITIMER_REAL, pause, pause)

    def _stop(self, number: int) -> None:
        self._is_stopping = True
        self._manager.stopping()
        self._signal_workers(number)

    def _signal_workers(self, number: int) -> None:
        for pid in self._processes:
            # Popen.send_signal would take the exit status of a worker that has just ended from `run`.
            with suppress(ProcessLookupError):
                os.kill(pid, number)
