"""Enough of systemctl for the page: it runs the services of /etc/systemd/system in a namespace without systemd.

Services run as root, because root alone may be able to read the interpreter and packages of a checkout. In
`tests/packaging`, systemd itself checks the units.
"""

import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

UNITS: Final = Path("/etc/systemd/system")
STATE: Final = Path("/run/systemctl")
ENABLED: Final = STATE / "enabled"
TARGET: Final = "shardwright.target"
POLL_SECONDS: Final = 0.02


@dataclass(frozen=True)
class Service:
    """One service, or one instance of a template."""

    name: str

    @property
    def text(self) -> str:
        """The unit, with its instance filled in."""
        stem, at, instance = self.name.partition("@")
        text = (UNITS / (f"{stem}@.service" if at else f"{stem}.service")).read_text(encoding="utf-8")
        return text.replace("%i", instance)

    def values(self, key: str) -> list[str]:
        """The values of a key."""
        lines = [line.partition("=") for line in self.text.splitlines() if not line.startswith("#")]
        return [value for name, _, value in lines if name == key]

    def value(self, key: str, default: str = "") -> str:
        """The last value of a key."""
        return [default, *self.values(key)][-1]

    @property
    def needs(self) -> list["Service"]:
        """The services that it requires."""
        return [named(word) for value in self.values("Requires") for word in value.split()]

    @property
    def pid(self) -> int | None:
        """Its process; None if it does not run."""
        try:
            pid = int((STATE / f"{self.name}.pid").read_text())
            return pid if "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] else None
        except OSError:
            return None

    def start(self) -> None:
        """Start the unit and its requirements, and wait until it is ready."""
        if self.pid is not None:
            return
        for each in self.needs:
            each.start()
        for directory in self.value("StateDirectory").split():
            Path("/var/lib", directory).mkdir(mode=0o700, parents=True, exist_ok=True)
        address = STATE / f"{self.name}.notify"
        address.unlink(missing_ok=True)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications:
            notifications.bind(str(address))
            files = min(int(self.value("LimitNOFILE", "64000")), resource.getrlimit(resource.RLIMIT_NOFILE)[1])
            with Path(f"/var/log/shardwright/{self.name}.out").open("ab") as output:
                process = subprocess.Popen(
                    self.value("ExecStart").split(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                    env={**os.environ, "NOTIFY_SOCKET": str(address)},
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files)),
                )
            (STATE / f"{self.name}.pid").write_text(str(process.pid))
            if self.value("Type") == "notify":
                self._wait_ready(notifications, process)

    def _wait_ready(self, notifications: socket.socket, process: "subprocess.Popen[bytes]") -> None:
        deadline = time.monotonic() + float(self.value("TimeoutStartSec", "90"))
        notifications.settimeout(0.2)
        while time.monotonic() < deadline and process.poll() is None:
            try:
                if b"READY=1" in notifications.recv(4096):
                    return
            except TimeoutError:
                continue
        output = Path(f"/var/log/shardwright/{self.name}.out").read_text(errors="replace")[-2000:]
        sys.exit(f"Job for {self.name}.service failed ({process.poll()}):\n{output}")

    def stop(self) -> None:
        """Stop it, after what requires it."""
        for each in running():
            if self in each.needs:
                each.stop()
        pid = self.pid
        if pid is None:
            return
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + float(self.value("TimeoutStopSec", "90"))
        while self.pid == pid:
            if time.monotonic() > deadline:
                os.kill(pid, signal.SIGKILL)
                sys.exit(f"{self.name} did not stop in time")
            time.sleep(POLL_SECONDS)

    def restart(self) -> None:
        """Restart it, and what requires it and runs."""
        others = [each for each in running() if self in each.needs]
        self.stop()
        self.start()
        for each in others:
            each.start()

    def reload(self) -> None:
        """Run the commands of ``ExecReload``."""
        for line in self.values("ExecReload"):
            subprocess.run(line.replace("$MAINPID", str(self.pid)).split(), check=True)


def named(word: str) -> Service:
    """The service of a word of the command line."""
    return Service(word.removesuffix(".service"))


def running() -> list[Service]:
    """The services that run, in the order in which they were started."""
    files = sorted(STATE.glob("*.pid"), key=lambda path: path.stat().st_mtime)
    return [service for path in files if (service := Service(path.name.removesuffix(".pid"))).pid is not None]


def expanded(words: Iterable[str], *, are_stopped: bool) -> list[Service]:
    """The services of words; the target stands for all."""
    found: list[Service] = []
    for word in words:
        if word == TARGET and are_stopped:
            found += reversed(running())
        elif word == TARGET:
            found += [named(line) for line in ENABLED.read_text().split() if line != TARGET]
        else:
            found.append(named(word))
    return found


def main() -> None:
    """Run the command."""
    verb, *words = sys.argv[1:]
    units = [word for word in words if not word.startswith("-")]
    STATE.mkdir(parents=True, exist_ok=True)
    if verb == "daemon-reload":
        return
    if verb == "enable":
        with ENABLED.open("a") as file:
            file.writelines(f"{word}\n" for word in units)
        units = [word for word in units if word != TARGET] if "--now" in words else []
        verb = "start"
    for service in expanded(units, are_stopped=verb == "stop"):
        {"start": service.start, "stop": service.stop, "restart": service.restart, "reload": service.reload}[verb]()


if __name__ == "__main__":
    main()
