"""A real mongod, reached through raw bytes, for tests that compare with it."""

import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from pymongo import MongoClient

from tests.wire.raw_connection import RawConnection


@pytest.fixture(scope="session")
def mongod_socket(mongod_binary: str) -> Iterator[str]:
    """The UNIX socket of a temporary mongod with all compressors and test commands enabled."""
    directory = tempfile.mkdtemp(prefix="shardwright-")
    socket = f"{directory}/mongod.sock"
    log_path = Path(directory) / "mongod.log"
    arguments = [mongod_binary, "--dbpath", directory, "--bind_ip", socket, "--wiredTigerCacheSizeGB", "0.25"]
    arguments += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
    arguments += ["--setParameter", "enableTestCommands=1", "--networkMessageCompressors", "snappy,zstd,zlib"]
    arguments += ["--replSet", "wire"]  # a standalone has one different assertion number; the set is never initiated
    with log_path.open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log)
    try:
        client: MongoClient[dict[str, Any]] = MongoClient(
            f"mongodb://{quote_plus(socket)}/?directConnection=true", serverSelectionTimeoutMS=30_000
        )
        with client:
            client.admin.command("ping")
        yield socket
    finally:
        process.kill()  # its data is not needed
        process.wait()
        shutil.rmtree(directory)


@pytest.fixture
def connect(mongod_socket: str) -> Iterator[Callable[[], RawConnection]]:
    """Opens new connections to that mongod."""
    opened: list[RawConnection] = []

    def open_connection() -> RawConnection:
        opened.append(RawConnection(mongod_socket))
        return opened[-1]

    yield open_connection
    for connection in opened:
        connection.close()
