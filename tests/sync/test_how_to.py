"""The how-to of docs/sync.md, followed to the letter with an application that writes all the while."""

import json
import re
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pytest
from bson.json_util import loads
from pymongo import MongoClient
from pymongo.errors import OperationFailure

from tests.local_cluster import COMMAND_TIMEOUT, RunningCluster, shardwright
from tests.sync.running import WAIT_SECONDS, WAITS_MAX, Client, environment, replica_set
from tests.sync.writers import USER_WRITES_BLOCKED

ROOT: Final = Path(__file__).parent.parent.parent
CUSTOMERS: Final = 200
ORDERS: Final = 3000
PAUSE_SECONDS: Final = 0.01

_BLOCK: Final = re.compile(r"^```sh\n# in (?P<where>.+)\n(?P<text>(?:.*\n)*?)^```$", re.MULTILINE)


class Shop:
    """An application that adds orders, at the source until it is switched.

    Attributes:
        acknowledged: the ids of its orders.
    """

    def __init__(self, client: Client) -> None:
        self.acknowledged: list[int] = []
        self._client = client
        self._ended = threading.Event()
        self._fault: BaseException | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def restart(self, client: Client) -> None:
        """Write somewhere else from now on."""
        self._thread.join()
        assert self._fault is None
        self._client = client
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def close(self) -> None:
        """End it."""
        self._ended.set()
        self._thread.join()
        assert self._fault is None

    def _run(self) -> None:
        while not self._ended.wait(PAUSE_SECONDS):
            number = ORDERS + len(self.acknowledged)
            try:
                self._client.shop.orders.insert_one({"_id": number, "customer": number % CUSTOMERS})
            except OperationFailure as error:
                if error.code != USER_WRITES_BLOCKED:
                    self._fault = error
                return
            self.acknowledged.append(number)


def blocks() -> Iterator[tuple[str, list[str]]]:
    """The commands of the page, each block with the terminal that it is for."""
    page = (ROOT / "docs" / "sync.md").read_text(encoding="utf-8")
    for found in _BLOCK.finditer(page):
        yield found["where"], found["text"].splitlines()


class Terminal:
    """Runs the commands of the page.

    Attributes:
        given: variables of the shell, with the values of a reader of the page.
    """

    def __init__(self, directory: Path, given: Mapping[str, str]) -> None:
        self.directory = directory
        self.given = dict(given)
        self._environment = environment(directory)

    def run(self, command: str, *options: str) -> str:
        """Run a command, which succeeds; returns its output."""
        done = subprocess.run(
            ["bash", "-c", " ".join((command, *options))],
            cwd=ROOT,
            env={**self._environment, **self.given},
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    @contextmanager
    def running(self, command: str) -> Iterator[tuple["subprocess.Popen[bytes]", Path]]:
        """Run a command in a terminal of its own, with the file of its output."""
        output = self.directory / "terminal"
        with output.open("w") as file:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=ROOT,
                env={**self._environment, **self.given},
                stdout=file,
                stderr=file,
            )
        try:
            yield process, output
        finally:
            if process.poll() is None:
                process.terminate()
            process.wait(WAIT_SECONDS)

    def wait_status(self, command: str, field: str, value: object) -> Mapping[str, Any]:
        """Repeat a command that prints the progress until a field has a value."""
        deadline = time.monotonic() + WAITS_MAX * WAIT_SECONDS
        while True:
            progress: Mapping[str, Any] = loads(self.run(command))["progress"]
            if progress[field] == value:
                return progress
            assert time.monotonic() < deadline, progress


@pytest.fixture
def shop_source(mongod_binary: str, tmp_path: Path) -> Iterator[tuple[str, Client]]:
    """The replica set of the application, with some orders."""
    with replica_set(mongod_binary, tmp_path, "rs0") as uri, MongoClient[dict[str, Any]](uri) as client:
        client.shop.orders.insert_many([{"_id": each, "customer": each % CUSTOMERS} for each in range(ORDERS)])
        client.shop.customers.insert_many([{"_id": each, "name": f"customer {each}"} for each in range(CUSTOMERS)])
        client.shop.orders.create_index("customer")
        yield uri, client


@pytest.mark.exhaustive
def test_the_how_to_moves_an_application_without_losing_an_order(
    shop_source: tuple[str, Client], tmp_path: Path
) -> None:
    (_, first), (own, [follow]), *rest = blocks()
    assert own == "a terminal of its own"
    [(_, status), (_, verify), (_, commit), (_, abort)] = rest
    assert [line.partition("=")[0] for line in (*first[:2], status[0])] == ["SOURCE", "TARGET", "ID"]
    uri, source = shop_source
    terminal = Terminal(tmp_path, {"SOURCE": uri})
    cluster = tmp_path / "cluster"
    shop = Shop(source)
    try:
        [start] = first[2:]
        document = json.loads(terminal.run(start, "--port", "0", "--json", "--dir", str(cluster)))
        terminal.given["TARGET"] = RunningCluster(cluster, document).uri
        with terminal.running(follow) as (process, output), MongoClient[dict[str, Any]](document["uri"]) as target:
            while not (printed := re.match(r"replication (\S+)\n", output.read_text())):
                assert process.poll() is None, output.read_text()
                time.sleep(PAUSE_SECONDS)
            terminal.given["ID"] = printed[1]
            published = tmp_path / "shardwright" / "sync" / f"{printed[1]}.json"
            while not published.exists():
                assert process.poll() is None, output.read_text()
                time.sleep(PAUSE_SECONDS)
            terminal.wait_status(status[1], "canCommit", value=True)
            assert json.loads(terminal.run(*verify))["verification"]["equal"]
            terminal.run(commit[0])
            progress = terminal.wait_status(commit[1], "state", value="COMMITTED")
            assert progress["pauseSeconds"] > 0
            shop.restart(target)
            terminal.run(*abort)
            assert process.wait(WAIT_SECONDS) == 0, output.read_text()
            assert shop.acknowledged
            shop.close()
            found = {each["_id"] for each in target.shop.orders.find({}, {"_id": 1})}
            assert found == {*range(ORDERS), *shop.acknowledged}
            assert target.shop.customers.count_documents({}) == CUSTOMERS
            assert len(target.config.chunks.distinct("shard")) == 2
    finally:
        shop.close()
        if cluster.exists():
            shardwright("down", "--dir", str(cluster))
