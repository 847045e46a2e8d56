"""Several router processes behind one port: the kernel spreads connections over them.

The process that was started keeps the workers running and passes signals on. A cursor lives in one worker, which its
id identifies; each worker also listens on a UNIX socket of its own, where its siblings forward requests about its
cursors (`forward_to_holder`).
"""

import argparse
import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from time import monotonic
from typing import Final

import trio

from shardwright.daemon.certificate_rotation import ROTATION_SIGNAL
from shardwright.daemon.held_back import ROTATED_SIGNAL, log_signals_held_back
from shardwright.daemon.log_rotation import DaemonLogs
from shardwright.daemon.logs import configure_logs, log_uncaught_exceptions
from shardwright.daemon.run import explain_start_error, open_listeners
from shardwright.daemon.signals import LogAction, ending_signals, obey_ending_signals, obey_log_signals, run_log_action
from shardwright.router.context.options import RouterOptions
from shardwright.router.context.router_context import RouterContext
from shardwright.router.cursors.ids import WORKERS_MAX, worker_of
from shardwright.router.processes.worker_crashes import CrashRate
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import BackendError, CommandError
from shardwright.wire.logger import get_logger
from shardwright.wire.tls.process_tls import TLS
from shardwright.wire.tls.settings import TlsMode

logger = get_logger("router.workers")

PORT_MAX: Final = 65_535

_INTERPRETER: Final = (sys.executable, "-P")
"""With -P no folder of the working directory is imported in place of one of our packages."""


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--workers`` and the options with which the first process starts the others."""
    parser.add_argument(
        "--workers", type=_worker_count, default=1, metavar="N", help="processes that share the port (default: 1)"
    )
    parser.add_argument("--worker-index", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--worker-directory", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--worker-supervisor", type=int, help=argparse.SUPPRESS)


def worker_sockets(parsed: argparse.Namespace) -> tuple[str, ...]:
    """The UNIX sockets of all workers by index; empty for a single process."""
    if parsed.worker_directory is None:
        return ()
    return tuple(str(parsed.worker_directory / f"worker-{index}.sock") for index in range(parsed.workers))


def run_workers(parsed: argparse.Namespace, arguments: Sequence[str], logs: DaemonLogs) -> int:
    """Run the workers until a signal ends them; returns the exit code.

    Args:
        parsed: the command line.
        arguments: the command line as it was given, for the workers.
        logs: the files that this process shares with them.
    """
    try:
        configure_logs(parsed.log_level, parsed.log_file, parsed.log_rotate)
        log_uncaught_exceptions()
        _check_addresses(parsed)
        sockets = tempfile.TemporaryDirectory(prefix="shardwright-router-")
    except OSError as error:
        return explain_start_error("shardwright-router", error)
    with sockets as directory:
        return _Supervisor(parsed, arguments, directory, logs).run()


def _check_addresses(parsed: argparse.Namespace) -> None:
    """Find out once, and not in each worker, whether the ports can be listened on.

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
    """In a worker: begin the shutdown when the process that started it has gone."""
    standard_input = sys.stdin.fileno()
    os.set_blocking(standard_input, False)
    await trio.lowlevel.wait_readable(standard_input)
    logger.warning("The supervising process ended")
    os.kill(os.getpid(), signal.SIGTERM)


def tell_supervisor_logs_were_rotated(options: RouterOptions) -> None:
    """In a worker: have the process that started it open the logs again, and its other workers too."""
    if options.supervisor is not None and os.getppid() == options.supervisor:
        os.kill(options.supervisor, ROTATED_SIGNAL)


def tell_supervisor_certificates_changed(options: RouterOptions) -> None:
    """In a worker with TLS: have the process that started it tell all its workers to read their files again."""
    if TLS.accepting is not None and options.supervisor is not None and os.getppid() == options.supervisor:
        os.kill(options.supervisor, ROTATION_SIGNAL)


def end_router(options: RouterOptions) -> None:
    """Begin the shutdown of this router, all of its processes included."""
    is_worker = options.supervisor is not None and os.getppid() == options.supervisor
    os.kill(options.supervisor if is_worker and options.supervisor else os.getpid(), signal.SIGTERM)


def holder_socket(options: RouterOptions, cursor_id: int) -> str | None:
    """The UNIX socket of the worker that holds a cursor; None if that is this worker, or there is no such worker."""
    holder = worker_of(cursor_id)
    if holder == options.worker_index or holder is None or holder >= len(options.worker_sockets):
        return None
    return options.worker_sockets[holder]


async def forward_to_holder(context: RouterContext, cursor_id: int, frame: bytes) -> bytes | None:
    """Have the worker that holds a cursor answer a request; None when that is this worker itself.

    Raises:
        CommandError: CursorNotFound, there is no such worker any more.
    """
    socket = holder_socket(context.options, cursor_id)
    if socket is None:
        return None
    try:
        return await context.pools[socket].exchange(frame)
    except BackendError as error:
        raise CommandError(ErrorCode.CursorNotFound, f"cursor id {cursor_id} not found") from error


class _Supervisor:
    def __init__(self, parsed: argparse.Namespace, arguments: Sequence[str], directory: str, logs: DaemonLogs) -> None:
        self._parsed = parsed
        self._arguments = arguments
        self._directory = directory
        self._logs = logs
        self._processes: dict[int, tuple[int, subprocess.Popen[bytes]]] = {}
        self._is_stopping = False

    def run(self) -> int:
        for received in ending_signals():
            signal.signal(received, lambda number, _: self._stop(number))
        if self._parsed.tls_mode is not TlsMode.DISABLED:
            signal.signal(ROTATION_SIGNAL, lambda number, _: self._signal_workers(number))
        signal.signal(ROTATED_SIGNAL, lambda *_: run_log_action(partial(self._change_logs, self._logs.reopen)))
        obey_log_signals(partial(self._change_logs, self._logs.rotate))
        for index in range(self._parsed.workers):
            self._start(index)
        obey_ending_signals()  # not before there are workers to pass them on to
        crashes = CrashRate()
        has_failed = False
        while self._processes:
            pid, status = os.wait()
            index, _ = self._processes.pop(pid)
            code = os.waitstatus_to_exitcode(status)
            if self._is_stopping:
                continue
            crashes.note(monotonic())
            logger.error("A worker ended unexpectedly", worker=index, exit_code=code)
            if crashes.is_too_high or code == 1:  # 1: it could not even start
                has_failed = True
                self._stop(signal.SIGTERM)
            else:
                self._start(index)
        return 1 if has_failed else 0

    def _start(self, index: int) -> None:
        command = [*_INTERPRETER, "-m", "shardwright.router.main", *self._arguments]
        command += ["--worker-index", str(index), "--worker-directory", self._directory]
        command += ["--worker-supervisor", str(os.getpid())]
        if self._parsed.metrics_port:
            command += ["--metrics-port", str(self._parsed.metrics_port + index)]
        # The worker's end of the pipe is closed when this process ends, however it ends.
        with log_signals_held_back():
            process = subprocess.Popen(command, process_group=0, stdin=subprocess.PIPE)
        self._processes[process.pid] = (index, process)
        if self._is_stopping:  # since it was decided to start it, so it could not be asked to stop
            os.kill(process.pid, signal.SIGTERM)

    def _change_logs(self, change: LogAction) -> None:
        """Rotate or reopen the logs, and have the workers go on in the new files."""
        try:
            change()
        finally:
            self._signal_workers(signal.SIGUSR1)

    def _stop(self, number: int) -> None:
        self._is_stopping = True
        self._signal_workers(number)

    def _signal_workers(self, number: int) -> None:
        for pid in self._processes:
            # Not Popen's own way, which would take the exit status of a worker that has just ended from `run`.
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _worker_count(text: str) -> int:
    if not text.isdigit() or not 1 <= int(text) <= WORKERS_MAX:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {WORKERS_MAX}")
    return int(text)
