"""Modules marked as pure do no I/O, and neither does anything that they import."""

from pathlib import Path
from typing import Final

import pytest

from tests.purity import impurities, is_to_be_pure
from tests.syntax import HOUSE

PURE: Final = [path for path in sorted(HOUSE.rglob("*.py")) if is_to_be_pure(path)]


@pytest.mark.parametrize("path", PURE, ids=lambda path: path.relative_to(HOUSE).as_posix())
def test_it_does_no_io(path: Path) -> None:
    assert impurities(path) == set()


@pytest.mark.parametrize(
    "name",
    [
        "router/placement/routing_info.py",
        "router/reads/result_merger.py",
        "router/replies/shard_reply.py",
        "router/writes/run.py",
        "sharding/targeting/filters.py",
        "shardd/session_history/oplog_history.py",
        "sync/checkpoint.py",
        "sync/batches.py",
        "wire/topology.py",
        "wire/message.py",
    ],
)
def test_what_is_to_be_pure_is_found(name: str) -> None:
    assert HOUSE / name in PURE


@pytest.mark.parametrize(
    "source",
    [
        "import trio",
        "from time import sleep\nsleep(1)",
        "import time\ntime.sleep(1)",
        "async def wait() -> None: ...",
        "with open('x') as file: pass",
        "from shardwright.wire.transport.pool import Pool",
        "from shardwright.router.sending.shard_sender import ShardSender",
        "if TYPE_CHECKING:\n    from shardwright.wire.transport.pool import Pool",
    ],
)
def test_an_impurity_is_found(source: str, tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(source, encoding="utf-8")
    assert impurities(path)
