"""Hosts on one machine: each is a process with its own network, host name, processes and files.

A host sees the machine's files, with its own layer above /etc, /usr/bin, /var/lib and /var/log, and an empty /run. The
hosts are joined by a bridge in a namespace of its own, so that nothing of the machine changes. What runs on a
host ends with its first process.
"""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.integration.waiting import eventually

ROOT: Final = Path(__file__).parents[2]
LAYERED: Final = ("/etc", "/usr/bin", "/var/lib", "/var/log")
COMMAND_SECONDS_MAX: Final = 300.0
PROGRAMS: Final = ("shardwright", "shardwright-router", "shardwright-shardd", "shardwright-configd")

_TOOLS: Final = ("ip", "unshare", "nsenter", "mount", "bash")


def why_not() -> str | None:
    """The reason why this machine cannot have such hosts; None if it can."""
    if os.geteuid() != 0:
        return "only root can create network namespaces"
    for tool in _TOOLS:
        if shutil.which(tool) is None:
            return f"there is no program {tool}"
    probe = (
        "mount -t tmpfs none /tmp && mkdir /tmp/u /tmp/w && mount -t overlay none -o "
        "lowerdir=/etc,upperdir=/tmp/u,workdir=/tmp/w /etc && ip link add one type veth peer name two && "
        "ip link add three type bridge"
    )
    completed = subprocess.run(
        ["unshare", "--net", "--mount", "--uts", "--pid", "--fork", "bash", "-c", probe],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if completed.returncode != 0:
        return f"namespaces with networks and overlays cannot be created: {completed.stderr.strip()}"
    return None


@dataclass(frozen=True)
class Host:
    """One host.

    Attributes:
        name: its host name.
        pid: its first process, as the machine sees it.
        folder: where commands run.
        spaces: the namespaces that it has.
    """

    name: str
    pid: int
    folder: Path
    spaces: tuple[str, ...]

    def command(self, *words: str) -> list[str]:
        """The words that run a program on the host."""
        return ["nsenter", f"--target={self.pid}", *self.spaces, f"--wdns={self.folder}", *words]

    def run(
        self,
        script: str,
        *,
        stdin: str = "",
        environment: Mapping[str, str] | None = None,
        timeout: float = COMMAND_SECONDS_MAX,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script of the shell; return its output and its exit status."""
        return subprocess.run(
            self.command("bash", "-e", "-c", script),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
            env={**os.environ, "PATH": "/usr/sbin:/usr/bin", **(environment or {})},
        )


@contextmanager
def hosts(directory: Path, addresses: Mapping[str, str], workstation: str, mongod: str) -> Iterator[dict[str, Host]]:
    """Hosts with these addresses, by their names; the programs of this checkout are installed on each.

    Args:
        directory: for their files.
        addresses: of a network with a prefix of 24 bits.
        workstation: the host whose commands run in a folder of its own, and which can copy files to the others.
        mongod: the binary that is installed as mongod.
    """
    started: list[subprocess.Popen[bytes]] = []
    names = "".join(f"{address} {name}\n" for name, address in addresses.items())
    try:
        switch = _start(directory / "switch.ready", ["ip link add s type bridge", "ip link set s up"], "--net")
        started.append(switch)
        found = {}
        for index, (name, address) in enumerate(addresses.items()):
            layers, is_workstation = directory / name, name == workstation
            # The workstation shares the machine's processes, because it enters the namespaces of the others to copy.
            spaces = ("--net", "--mount", "--uts", *(() if is_workstation else ("--pid",)))
            lines = [*_layer(layers), f"hostname {name}", "ip link set lo up", *_programs(mongod, names)]
            own_processes = () if is_workstation else ("--fork", "--kill-child", "--mount-proc")
            process = _start(layers / "ready", lines, *spaces, *own_processes)
            started.append(process)
            pid = process.pid if is_workstation else _first_process(process)
            host = found[name] = Host(name, pid, layers / "home" if is_workstation else ROOT, spaces)
            for words in (
                ("link", "add", f"h{index}", "type", "veth", "peer", "name", "eth0", "netns", str(pid)),
                ("link", "set", f"h{index}", "master", "s", "up"),
            ):
                subprocess.run(["nsenter", f"--target={switch.pid}", "--net", "ip", *words], check=True, timeout=30)
            joined = host.run(f"ip address add {address}/24 dev eth0 && ip link set eth0 up")
            assert joined.returncode == 0, joined.stderr
        _give_scp(found[workstation], found)
        yield found
    finally:
        for process in started:
            process.kill()  # the processes of its namespace end with it
            process.wait()


def _start(ready: Path, lines: Sequence[str], *spaces: str) -> "subprocess.Popen[bytes]":
    """Start the first process of namespaces, and wait until it has set them up."""
    ready.parent.mkdir(parents=True, exist_ok=True)
    # The first of the processes of a namespace adopts what is left over.
    rest = "while :; do sleep 3600 & wait $!; done" if "--pid" in spaces else "exec sleep infinity"
    script = "\n".join(["set -e", *lines, f"touch {ready}", rest])
    process = subprocess.Popen(["unshare", *spaces, "bash", "-c", script])

    def is_ready() -> bool:
        assert process.poll() is None, "the namespaces could not be set up"
        return ready.exists()

    eventually(is_ready, what="namespaces are set up")
    return process


def _first_process(process: "subprocess.Popen[bytes]") -> int:
    """The child of ``unshare --fork``."""
    return int(Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()[0])


def _layer(layers: Path) -> Iterator[str]:
    (layers / "home").mkdir(parents=True, exist_ok=True)
    for path in LAYERED:
        name = path.strip("/").replace("/", "-")
        upper, work = layers / name, layers / f"{name}.work"
        upper.mkdir()
        work.mkdir()
        yield f"mount -t overlay none -o lowerdir={path},upperdir={upper},workdir={work} {path}"
    yield "mount -t tmpfs none /run"


def _programs(mongod: str, names: str) -> Iterator[str]:
    scripts = Path(sys.executable).parent
    for program in PROGRAMS:
        yield f"ln -sf {scripts / program} /usr/bin/{program}"
    yield f"ln -sf {mongod} /usr/bin/mongod"
    yield f"ln -sf {ROOT}/node_modules/.bin/mongosh /usr/bin/mongosh"
    shim = Path(__file__).with_name("systemctl.py")
    yield f"rm -f /usr/bin/systemctl; printf '#!/bin/sh\\nexec {sys.executable} {shim} \"$@\"\\n' > /usr/bin/systemctl"
    yield "chmod 755 /usr/bin/systemctl"
    yield f"printf '127.0.0.1 localhost\\n{names.replace(chr(10), chr(92) + 'n')}' > /etc/hosts"


def _give_scp(workstation: Host, all_hosts: Mapping[str, Host]) -> None:
    """Give the workstation an ``scp -r FOLDER/. root@HOST:PATH`` that enters the namespaces of the host."""
    cases = "\n".join(f"root@{each.name}) pid={each.pid};;" for each in all_hosts.values())
    text = f"""#!/bin/bash
[[ $1 == -r && $# == 3 ]] || exit 2
case "${{3%%:*}}" in
{cases}
*) echo "no such host: $3" >&2; exit 1;;
esac
tar -C "$2" -c . | nsenter --target=$pid --mount tar -C "${{3#*:}}" -x --no-same-owner
"""
    completed = workstation.run("cat > /usr/bin/scp; chmod 755 /usr/bin/scp", stdin=text)
    assert completed.returncode == 0, completed.stderr
