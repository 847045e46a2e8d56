"""Loggers that write debug lines, by the verbosities of MongoDB's log components."""

import logging
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

import shardwright
from shardwright.router.context.parameters import LOGGERS, Parameters, changed_verbosity, default_verbosity, verbosities
from shardwright.wire.tls import ProcessTls
from shardwright.wire.transport.cluster_auth import ClusterAuth

PACKAGES: Final = ("config_servers", "daemon", "router", "wire")
PARAMETER: Final = "logComponentVerbosity"


@pytest.fixture
def parameters() -> Iterator[Parameters]:
    """The parameters of a router, whose log is as before afterwards."""
    root = logging.getLogger()
    level = root.level
    changed = Parameters(ClusterAuth(ProcessTls()), {})
    before = changed[PARAMETER]
    yield changed
    changed.set(PARAMETER, before)
    root.setLevel(level)


def debugging() -> set[str]:
    """The components that write debug lines."""
    return {
        component
        for component, loggers in LOGGERS.items()
        if all(logging.getLogger(each).isEnabledFor(logging.DEBUG) for each in loggers)
    }


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"query": 1}, {"query"}),
        ({"network": 1}, {"network", "network.connectionPool"}),
        ({"network": {"verbosity": 1, "connectionPool": 0}}, {"network"}),
        ({"network": {"connectionPool": {"verbosity": 2}}}, {"network.connectionPool"}),
        ({"sharding": {"shardingCatalogRefresh": 1}}, {"sharding.shardingCatalogRefresh"}),
        ({"verbosity": 1}, set(LOGGERS)),
        ({"verbosity": 1, "command": 0}, set(LOGGERS) - {"command"}),
        ({"storage": 2}, set()),
    ],
)
def test_components_have_their_own_levels(parameters: Parameters, changes: dict[str, Any], expected: set[str]) -> None:
    parameters.set(PARAMETER, {"verbosity": 0})
    assert debugging() == set()
    parameters.set(PARAMETER, changes)
    assert debugging() == expected


def test_log_level_is_that_of_components_without_their_own(parameters: Parameters) -> None:
    parameters.set(PARAMETER, {"command": 0, "query": 1})
    parameters.set("logLevel", 1)
    assert debugging() == set(LOGGERS) - {"command"}
    parameters.set("logLevel", 0)
    assert debugging() == {"query"}


def test_all_loggers_exist() -> None:
    """All components exist too: an unknown name would fail."""
    folder = Path(shardwright.__file__).parent
    sources = [path.read_text(encoding="utf-8") for each in PACKAGES for path in (folder / each).rglob("*.py")]
    used = {name for source in sources for name in re.findall(r'get_logger\("([a-z_.]+)"\)', source)}
    named = [logger for loggers in LOGGERS.values() for logger in loggers]
    assert set(named) <= used
    assert len(named) == len(set(named))
    assert not {each for each in used if each.startswith(("router.", "wire."))} - set(named)
    assert set(verbosities(changed_verbosity(default_verbosity(), {}))) == set(named)
