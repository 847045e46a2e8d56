"""Fixtures that tests of several folders share."""

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime

import pytest
from hypothesis import settings

from shardwright.deploy.mongod import find_mongod
from tests.both_ways import both_ways_of_running
from tests.local_cluster import Client, RunningCluster, close_all_clusters, running_cluster
from tests.longest_first import LEFT_OUT, LongestFirst, has_turn
from tests.own_ports import use_own_ports
from tests.parts import Part
from tests.reaper import start_reaper
from tests.sampling import choose_by, many, run_all, sampled
from tests.second_run import chosen
from tests.transports import transport

__all__ = ["both_ways_of_running", "transport"]

# A run starts hundreds of daemons. Without bytecode, half the work of a start is to compile the same modules again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# What PyMongo logs for debugging decodes the documents of commands, also those with values that Python does not have.
logging.getLogger("pymongo").setLevel(logging.INFO)


def pytest_configure(config: pytest.Config) -> None:
    """Handle SIGTERM like Ctrl-C, so that fixtures stop the processes they started; clean up after them."""
    use_own_ports()
    choose_by(_seed(config))
    if _is_whole(config):
        run_all()
    if config.option.closed:
        close_all_clusters()
    # How long one example takes says nothing where a cluster runs at the same time. Continuous integration tries the
    # same examples each time; elsewhere each run tries new ones, and a failure prints how to see it again.
    settings.register_profile(
        "shardwright",
        deadline=None,
        print_blob=True,
        derandomize="CI" in os.environ,
        max_examples=many(100, 40),
    )
    settings.load_profile("shardwright")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    # Where tests run side by side, this is done in each process that runs tests, not in the one that directs them.
    if not config.getoption("numprocesses", None):
        config.stash[REAPER] = start_reaper()


def pytest_unconfigure(config: pytest.Config) -> None:
    """Wait until nothing is left of the run."""
    if (reaper := config.stash.get(REAPER, None)) is not None:
        assert reaper.stdin is not None
        reaper.stdin.close()
        reaper.wait()


REAPER = pytest.StashKey[subprocess.Popen[bytes]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add ``--all`` for tests too long for every run, and ``--sample-seed`` to choose the same sample again."""
    parser.addoption("--closed", action="store_true", help="run what tests/second_run.py chooses, on closed clusters")
    parser.addoption("--all", action="store_true", help="run all of every matrix, and the tests marked exhaustive")
    parser.addoption("--minutes", type=float, help="begin no file afterwards (where files run side by side)")
    parser.addoption("--part", type=Part.parse, metavar="K/N", help="run the Kth of N parts of the tests")
    parser.addoption(
        "--sample-seed",
        type=int,
        default=datetime.now(UTC).date().toordinal(),
        help="chooses the sample of each matrix (default: by the day)",
    )


def pytest_report_header(config: pytest.Config) -> str:
    """Report the option that selects the same sample again."""
    return "all of every matrix" if config.option.all else f"a sample of each matrix: --sample-seed {_seed(config)}"


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the files for which there was no time."""
    if left_out := config.stash.get(LEFT_OUT, []):
        terminalreporter.section(f"{len(left_out)} files left out: {config.option.minutes:g} minutes have passed")
        terminalreporter.write_line(" ".join(sorted(left_out)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """The longest files first, where files are run side by side."""
    return LongestFirst(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the long part out, unless tests were named one by one."""
    if config.option.closed and not _is_named(config):
        items[:], left_out = chosen(items, None if config.option.all else _seed(config))
        config.hook.pytest_deselected(items=left_out)
    if config.option.part is not None:
        items[:], left_out = config.option.part.of(items)
        config.hook.pytest_deselected(items=left_out)
    if _is_whole(config):
        return
    items[:], left_out = sampled(items, _seed(config))
    config.hook.pytest_deselected(items=left_out)
    if config.option.minutes is not None:
        turns = [(item, has_turn(item.nodeid.partition("::")[0], _seed(config))) for item in items]
        items[:] = [item for item, is_now in turns if is_now]
        config.hook.pytest_deselected(items=[item for item, is_now in turns if not is_now])


def _is_whole(config: pytest.Config) -> bool:
    """Whether nothing is left out: on demand, and where tests are named one by one."""
    return config.option.all or _is_named(config)


def _is_named(config: pytest.Config) -> bool:
    return any("::" in argument for argument in config.args)


def _seed(config: pytest.Config) -> int:
    seed: int = config.option.sample_seed
    return seed


@pytest.fixture(scope="session")
def mongod_binary() -> str:
    """The mongod that clusters run on."""
    return find_mongod()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster of the whole test run: two shards, two routers, one member each.

    Tests use databases of their own, and leave every process running.
    """
    # With smaller caches the shards' mongods may refuse the 48 MB that one of PyMongo's tests inserts in a transaction.
    options = ("--routers", "2", "--orphan-cleanup-delay", "0", "--verify-migrations", "--cache-gb", "1")
    with running_cluster(tmp_path_factory.mktemp("cluster"), *options) as running:
        with running.direct("config.0.configd") as config:
            # However busy the machine is.
            config.admin.command("setParameter", 1, reshardingCriticalSectionTimeoutMillis=60_000)
        yield running


@pytest.fixture
def client(cluster: RunningCluster) -> Iterator[Client]:
    """A client of the cluster's routers."""
    with cluster.client() as connected:
        yield connected
