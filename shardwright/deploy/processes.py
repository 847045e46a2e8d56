"""Starting, identifying and ending processes, and the end of this one by a signal. Linux only (``/proc``, pidfds).

A process is identified by its pid *and* its start time, so that a signal never reaches a later process with the same
pid. A pid file identifies the current or last process of each name. It names the directory from which the process was
started, so that a copy of a running cluster's directory does not control the original's processes.

A mark in the environment of each process has its cluster's directory and its name. It identifies processes whose pid
file was lost, damaged or never written. A directory is identified by its inode, so that a copy is another directory,
while a renamed directory is still the same.
"""

import json
import os
import select
import signal
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final, NamedTuple, NoReturn

from shardwright.deploy.durable_files import write_json

_PAUSE_POLL_SECONDS: Final = 0.005

_VARIABLE = "SHARDWRIGHT_PROCESS"


@dataclass(frozen=True)
class ProcessIdentity:
    """One process of one boot of this machine.

    Attributes:
        started: boot id and clock ticks since boot, as text; equal only for the same process.
    """

    pid: int
    started: str

    @classmethod
    def of(cls, pid: int) -> "ProcessIdentity | None":
        """Identify the process that now has ``pid``; ``None`` if there is none, or it is a zombie."""
        found = _look_up(pid)
        return None if found is None or found.state in "ZX" else cls(pid, found.started)

    def is_running(self) -> bool:
        """Whether exactly this process is still running."""
        return ProcessIdentity.of(self.pid) == self

    def send(self, number: signal.Signals) -> bool:
        """Send a signal; return False if the process has already ended."""
        with self._pidfd() as descriptor:
            if descriptor is None:
                return False
            try:
                signal.pidfd_send_signal(descriptor, number)
            except ProcessLookupError:
                return False
            return True

    def wait_ended(self, timeout: float) -> bool:
        """Wait until all threads of the process have ended; return False if it still runs after ``timeout`` seconds.

        A process whose first thread has ended looks like a zombie while other threads still hold its files and ports.
        Its pidfd becomes readable only when all threads have ended.
        """
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return True
        try:
            found = _look_up(self.pid)
            return found is None or found.started != self.started or bool(_wait_readable([descriptor], timeout))
        finally:
            os.close(descriptor)

    def wait_paused(self, timeout: float) -> bool:
        """Wait until SIGSTOP has stopped all threads; return False if some still run after ``timeout`` seconds.

        The signal is sent before it takes effect: while its threads wait for a busy processor, a process can still
        answer. The kernel announces the stop to the parent only, so this polls.
        """
        deadline = time.monotonic() + timeout
        while self.is_running() and not _is_paused(self.pid):
            if time.monotonic() > deadline:
                return False
            time.sleep(_PAUSE_POLL_SECONDS)
        return True

    @contextmanager
    def _pidfd(self) -> Iterator[int | None]:
        """Open a descriptor of this process, never of a later one with the same pid; ``None`` if it has ended."""
        try:
            descriptor = os.pidfd_open(self.pid)
        except ProcessLookupError:
            yield None
            return
        try:
            # Checked after opening: from here on the descriptor cannot refer to another process.
            yield descriptor if self.is_running() else None
        finally:
            os.close(descriptor)


def spawn(
    arguments: list[str],
    output: Path,
    environment: Mapping[str, str] | None = None,
    *,
    directory: Path | None = None,
    masked_signals: Iterable[signal.Signals] = (),
) -> ProcessIdentity:
    """Start a program in its own session.

    Args:
        output: receives its standard output and error, appended.
        environment: variables to add to this process's environment.
        directory: its working directory; ``None`` for the directory of this process.
        masked_signals: signals that are blocked until the program unblocks them.
    """
    append = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    if directory is not None:
        # posix_spawn cannot set the directory, and chdir in this process would affect all its threads.
        arguments = ["/bin/sh", "-c", 'cd "$0" && exec "$@"', str(directory), *arguments]
    pid = os.posix_spawn(
        arguments[0],
        arguments,
        {**os.environ, **(environment or {})},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(output), append, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        # A launcher under nohup, or in the background of a shell, ignores signals that the program must handle.
        setsigdef=[signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGHUP],
        setsigmask=masked_signals,
    )
    identity = ProcessIdentity.of(pid)
    # If it has failed at once, the pid is still a zombie of ours, so no other process can have it.
    return identity or ProcessIdentity(pid, "ended")


def wait_any_ended(identities: list[ProcessIdentity], timeout: float) -> None:
    """Wait until one of the processes has ended, at most ``timeout`` seconds."""
    descriptors = []
    try:
        for identity in identities:
            try:
                descriptors.append(os.pidfd_open(identity.pid))
            except ProcessLookupError:
                return
            if not identity.is_running():
                return
        _wait_readable(descriptors, timeout)
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def exit_description(identity: ProcessIdentity) -> str:
    """Describe the end of a process, as far as known: only its own parent can read the exit status."""
    try:
        _, status = os.waitpid(identity.pid, os.WNOHANG)
    except ChildProcessError:
        return "ended"
    code = os.waitstatus_to_exitcode(status)
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit status {code}"


def command_line(pid: int) -> list[str]:
    """Return the words of a process's command line; empty if it has ended."""
    try:
        return os.fsdecode(Path(f"/proc/{pid}/cmdline").read_bytes()).split("\0")
    except OSError:
        return []


class _Found(NamedTuple):
    """A process in ``/proc``: the letter of its state, and its start time as in `ProcessIdentity`."""

    state: str
    started: str


def _is_paused(pid: int) -> bool:
    try:
        threads = [task / "stat" for task in Path(f"/proc/{pid}/task").iterdir()]
        return all(thread.read_text().rpartition(")")[2].split()[0] == "T" for thread in threads)
    except (FileNotFoundError, ProcessLookupError):
        return False  # a thread has just ended


def _look_up(pid: int) -> _Found | None:
    try:
        # The command name, in parentheses, may itself contain spaces and parentheses.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return _Found(fields[0], f"{boot}:{fields[19]}")


def _wait_readable(descriptors: list[int], timeout: float) -> list[int]:
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    return [descriptor for descriptor, _ in poll.poll(timeout * 1000)]


def directory_identity(directory: Path) -> str:
    """Return the identity of a directory, as text.

    Raises:
        OSError: it does not exist or is inaccessible.
    """
    found = directory.stat()
    return f"{found.st_dev}:{found.st_ino}"


def mark(directory: str, name: str) -> dict[str, str]:
    """Return the environment variable that marks the process ``name`` of the cluster in a directory.

    Args:
        directory: the identity of the directory.
    """
    return {_VARIABLE: f"{directory}/{name}"}


def marked_processes(directory: str) -> dict[str, ProcessIdentity]:
    """Return the running processes of the cluster in a directory, by name.

    Their child processes, such as the workers of a router, carry the mark too and are omitted.

    Args:
        directory: the identity of the directory.
    """
    beginning = f"{_VARIABLE}={directory}/".encode()
    found = {}
    for pid in _session_leaders():
        for variable in _environment(pid):
            if variable.startswith(beginning):
                identity = ProcessIdentity.of(pid)
                if identity is not None:
                    found[os.fsdecode(variable[len(beginning) :])] = identity
    return found


def _session_leaders() -> Iterator[int]:
    """Yield the pids of session leaders; each process of a cluster has its own session, shared by its children."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            pid = int(entry.name)
            try:
                if os.getsid(pid) == pid:
                    yield pid
            except ProcessLookupError:
                continue


def _environment(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []  # it has ended, or belongs to another user


@dataclass(frozen=True)
class PidFile:
    """The contents of a pid file. At most one of ``identity``, ``original`` and ``damage`` is not None.

    Attributes:
        identity: the process, running or not.
        original: if this file is a copy and the process is running, the directory from which it was started.
        damage: why the file cannot be read.
    """

    identity: ProcessIdentity | None = None
    original: str | None = None
    damage: str | None = None


def save_pid_file(path: Path, identity: ProcessIdentity, root: Path, directory: str) -> None:
    """Record a process.

    Args:
        directory: the directory's identity, from `directory_identity`."""
    document = {"pid": identity.pid, "started": identity.started, "directory": directory, "path": str(root)}
    write_json(path, document)


def load_pid_file(path: Path, log: Path, directory: str) -> PidFile:
    """Read a pid file; the result is empty if it does not exist.

    Args:
        log: the process's log file, which identifies the process if an old pid file names no directory.
        directory: the identity of the cluster's directory.
    """
    try:
        document = json.loads(path.read_bytes())
        identity = ProcessIdentity(int(document["pid"]), str(document["started"]))
    except FileNotFoundError:
        return PidFile()
    except (OSError, ValueError, TypeError, KeyError, OverflowError, RecursionError) as error:
        return PidFile(damage=_damage(error))
    named = document.get("directory")
    is_ours = named == directory if named is not None else str(log) in command_line(identity.pid)
    if is_ours or not identity.is_running():
        # A directory's inode may change when the machine reboots, but then none of its processes is still running.
        return PidFile(identity=identity)
    return PidFile(original=_path_of(document))


def _path_of(document: dict[str, Any]) -> str:
    return str(document.get("path", "another directory"))


def _damage(error: Exception) -> str:
    return f"it lacks {error}" if isinstance(error, KeyError) else str(error)


@contextmanager
def signals_interrupt() -> Iterator[None]:
    """Raise KeyboardInterrupt at the first SIGINT, SIGTERM or SIGHUP; ignore further ones during the clean-up."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

    def interrupt(number: int, frame: FrameType | None) -> NoReturn:
        for each in numbers:
            signal.signal(each, signal.SIG_IGN)
        raise KeyboardInterrupt

    previous = {number: signal.signal(number, interrupt) for number in numbers}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
