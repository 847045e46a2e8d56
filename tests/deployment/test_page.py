"""The commands of docs/deployment.md as they stand, on three hosts and a workstation."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

import pytest

from shardwright.deploy.mongod import find_mongod
from tests.deployment.namespaces import ROOT, Host, hosts, why_not
from tests.deployment.page import EVERY_HOST, WORKSTATION, Block, blocks

ADDRESSES: Final = {f"{letter}.example.net": f"10.0.0.{number}" for number, letter in enumerate("abc", 1)}
OWN: Final = "workstation.example.net"
PASSWORD: Final = "a-password-of-the-test"
URI: Final = (
    f"mongodb://root:{PASSWORD}@{','.join(ADDRESSES)}/?authSource=admin&tls=true&tlsCAFile=hosts/authority/ca.pem"
)
EXIT_FINDINGS: Final = 2

MISSING: Final = why_not()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"no hosts of its own: {MISSING}")


@pytest.fixture(scope="module")
def all_hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Host]]:
    """The three hosts and the workstation."""
    directory = tmp_path_factory.mktemp("hosts")
    with hosts(directory, {**ADDRESSES, OWN: "10.0.0.100"}, OWN, find_mongod()) as found:
        yield found


def test_blocks_name_hosts_of_the_page() -> None:
    for block in blocks():
        assert set(block.where) <= {*ADDRESSES, EVERY_HOST, WORKSTATION}, block.section


class Page:
    """Runs the blocks in their order.

    Args:
        all_hosts: where.
    """

    def __init__(self, all_hosts: dict[str, Host]) -> None:
        self._hosts = all_hosts
        self._left = blocks()

    def run(self, section: str, number: int | None = None) -> None:
        """Run the next blocks, which are in a section: all of them, or that many."""
        assert self._left, "the page has ended"
        assert self._left[0].section == section, "an earlier part of the page has failed"
        while self._left and self._left[0].section == section and number != 0:
            self._run(self._left.pop(0))
            number = None if number is None else number - 1

    @property
    def is_done(self) -> bool:
        """Whether all blocks have run."""
        return not self._left

    def host(self, letter: str) -> Host:
        """A host by its letter."""
        return self._hosts[f"{letter}.example.net"]

    @property
    def workstation(self) -> Host:
        """The workstation."""
        return self._hosts[OWN]

    def _run(self, block: Block) -> None:
        names = {EVERY_HOST: list(ADDRESSES), WORKSTATION: [OWN]}
        where = [self._hosts[name] for each in block.where for name in names.get(each, [each])]
        started = time.monotonic()
        with ThreadPoolExecutor(len(where) if block.is_simultaneous else 1) as running:
            for _ in running.map(lambda host: _checked(block, host), where):
                pass
        print(f"{time.monotonic() - started:6.1f} s  {block.section}: {block.script.splitlines()[0]}", file=sys.stderr)


def _checked(block: Block, host: Host) -> None:
    completed = host.run(block.script, stdin=f"{PASSWORD}\n")
    is_examination = "shardwright doctor" in block.script and completed.returncode == EXIT_FINDINGS
    if is_examination:  # this machine may have transparent huge pages, or a full disk
        assert "ERROR" not in completed.stdout.replace("ERROR disk-full", ""), completed.stdout
        return
    assert completed.returncode == 0, f"{host.name}: {block.script}\n{completed.stdout}\n{completed.stderr}"


def ask(page: Page, code: str) -> Any:  # noqa: ANN401 - whatever the code prints
    """Run code with a client of all routers, and return its result through JSON."""
    script = f"import json; from pymongo import MongoClient\nclient = MongoClient({URI!r})\nprint(json.dumps({code}))"
    completed = subprocess.run(
        page.workstation.command(sys.executable, "-c", script), capture_output=True, text=True, timeout=60, check=False
    )
    assert completed.returncode == 0, completed.stderr
    return json.loads(completed.stdout)


@contextmanager
def load(page: Page, name: str) -> Iterator[dict[str, Any]]:
    """Write during the block; the result is there after it."""
    result: dict[str, Any] = {}
    with subprocess.Popen(
        page.workstation.command("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "tests.deployment.load", URI, name),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "started\n"
            yield result
            output, _ = process.communicate(timeout=120)
            result.update(json.loads(output))
        finally:
            process.kill()


@pytest.fixture(scope="module")
def page(all_hosts: dict[str, Host]) -> Page:
    """The page, which the tests run from its beginning to its end."""
    return Page(all_hosts)


def test_a_cluster_is_set_up(page: Page) -> None:
    page.run("Install")
    page.run("Describe the cluster")
    check_failures_continue(page)
    page.run("Create the sets")
    page.run("The first user")
    page.run("Look for mistakes")


def test_everything_restarts_while_it_serves(page: Page) -> None:
    with load(page, "restart") as result:
        page.run("Restart everything while it serves")
    assert result["errors"] == []
    assert (result["lostInserts"], result["lostTransactions"], result["halves"]) == ([], [], [])
    assert result["inserts"] > 100
    assert result["transactions"] > 50


def test_a_shard_is_added(page: Page) -> None:
    page.run("Add a shard", 3)
    c = page.host("c")
    assert "the cluster already has the shard shard1" in failing(c, "shardwright init-set shard1")
    error = failing(c, "shardwright join shard1 --member a.example.net:27018")
    assert "a.example.net:27018 is a member of shard0, not of shard1" in error
    page.run("Add a shard")
    assert ask(page, "sorted(s['_id'] for s in client.admin.command('listShards')['shards'])") == ["shard0", "shard1"]


def test_a_host_is_replaced_and_the_cluster_stops_for_the_night(page: Page) -> None:
    page.run("Replace a host")
    expected = ask(page, "client.shop.orders.count_documents({})")
    page.run("Stop for the night", 2)
    for letter in "abc":
        assert page.host(letter).run("pgrep --count '^(shardwright|mongod)' || true").stdout == "0\n"
    page.run("Stop for the night")
    assert ask(page, "client.shop.orders.count_documents({})") == expected > 0
    assert page.is_done


def failing(host: Host, script: str) -> str:
    """The error of a command that has to fail."""
    completed = host.run(script)
    assert completed.returncode == 1, completed.stdout + completed.stderr
    return completed.stderr


def check_failures_continue(page: Page) -> None:
    """Interrupt the set-up at its steps, and see that the error says why and that the page's command continues."""
    a = page.host("a")
    assert a.run("systemctl stop shardwright-mongod@config").returncode == 0
    assert "the mongod a.example.net:28019 does not answer" in failing(a, "shardwright init-set config --timeout 3")
    # The mongod alone, so that the set is initiated and its daemon is missing.
    assert a.run("systemctl start shardwright-mongod@config").returncode == 0
    error = failing(a, "shardwright init-set config --timeout 20")
    assert "the daemon a.example.net:27019 does not show itself as a member of config" in error
    assert a.run("systemctl start shardwright-configd@config").returncode == 0
    assert "do not exist" in failing(a, "shardwright init-set shard7")
    # The file of a daemon that names the mongod of another set.
    wrong = (
        "mkdir /run/wrong && sed s/28018$/28019/ /etc/shardwright/shardd-shard0.yaml > /run/wrong/shardd-shard0.yaml"
    )
    error = failing(a, f"{wrong}; shardwright init-set shard0 --config-dir /run/wrong")
    assert "/run/wrong has no router.yaml: name a router of the cluster with --router" in error
    error = failing(a, "shardwright init-set shard0 --config-dir /run/wrong --router a.example.net:27017")
    assert "belongs to the replica set config, not to shard0" in error
