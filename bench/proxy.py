"""A TCP proxy written in C in front of a mongod: the cost of a hop that examines nothing."""

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from pymongo.errors import PyMongoError

from bench.loadgen import BenchError
from bench.targets import Target
from shardwright.deploy.mongod import connect
from shardwright.deploy.ports import PortReservation
from shardwright.deploy.topology import LOOPBACK

PROXY: Final = shutil.which("haproxy", path="/usr/sbin:/usr/bin:/usr/local/sbin:/usr/local/bin")
"""The proxy's path; None if it is not installed."""

_CONFIGURATION: Final = """
global
    nbthread 1
defaults
    mode tcp
    timeout connect 5s
    timeout client 10m
    timeout server 10m
listen mongod
    bind {listen}
    server mongod {mongod}
"""


@contextmanager
def tcp_proxy(direct: Target, directory: Path) -> Iterator[Target]:
    """Run the proxy in front of a target."""
    assert PROXY is not None
    directory.mkdir(parents=True)
    with PortReservation() as ports:
        port = ports.hold_free()
        ports.release(port)
    address = f"{LOOPBACK}:{port}"
    configuration = directory / "haproxy.cfg"
    configuration.write_text(_CONFIGURATION.format(listen=address, mongod=direct.address))
    process = subprocess.Popen([PROXY, "-f", str(configuration), "-db"], stderr=subprocess.DEVNULL)
    try:
        with connect(address, timeout=10) as client:
            client.admin.command("ping")
        yield Target("tcp proxy", address, direct.dialect, {"proxy": (process.pid,), **direct.processes})
    except PyMongoError as error:
        raise BenchError(f"the proxy does not start: {error}") from error
    finally:
        process.terminate()
        process.wait()
