"""A real mongod for the tests that compare with it."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote_plus

import pytest
from pymongo import MongoClient
from pymongo.collection import Collection
from pymongo.errors import PyMongoError


@pytest.fixture(scope="session")
def mongod(mongod_binary: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """A client of a throw-away mongod."""
    with throw_away_mongod(mongod_binary) as client:
        yield client


@contextmanager
def throw_away_mongod(binary: str, *options: str) -> Iterator[MongoClient[dict[str, Any]]]:
    """Run a mongod that listens only on a UNIX socket, so it needs no port; yields a client of it."""
    directory = tempfile.mkdtemp(prefix="shardwright-")
    socket = f"{directory}/mongod.sock"
    log_path = Path(directory) / "mongod.log"
    arguments = [binary, *options, "--dbpath", directory, "--bind_ip", socket, "--wiredTigerCacheSizeGB", "0.25"]
    arguments += ["--setParameter", "diagnosticDataCollectionEnabled=false"]
    with log_path.open("wb") as log:
        process = subprocess.Popen(arguments, stdout=log, stderr=log)
    try:
        client: MongoClient[dict[str, Any]] = MongoClient(
            f"mongodb://{quote_plus(socket)}", serverSelectionTimeoutMS=30_000
        )
        with client:
            try:
                client.admin.command("ping")
            except PyMongoError as error:
                error.add_note(log_path.read_text()[-2000:])
                raise
            yield client
    finally:
        process.kill()  # its data is not kept
        process.wait()
        shutil.rmtree(directory)


@pytest.fixture
def collection(mongod: MongoClient[dict[str, Any]], request: pytest.FixtureRequest) -> Collection[dict[str, Any]]:
    """An empty collection of the test's own."""
    return mongod["test"][request.node.name]
