"""A redacted log has no data of clients."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest

from shardwright.daemon.log_formats import REDACTION
from shardwright.daemon.logs import configure_logs
from shardwright.wire.logger import get_logger

DATA = "4111-1111-1111"


@pytest.fixture
def log_path(tmp_path: Path) -> Iterator[Path]:
    """The log of this process, redacted."""
    path = tmp_path / "log"
    configure_logs("debug", path)
    REDACTION.is_on = True
    yield path
    REDACTION.is_on = False
    configure_logs()


def test_only_what_is_known_to_be_harmless_remains(log_path: Path) -> None:
    logger = get_logger("test").bind(migration=DATA)
    logger.info(
        "Slow operation", namespace="shop.goods", command="find", duration_ms=5.5, remote="127.0.0.1:5", query=DATA
    )
    line = json.loads(log_path.read_text())
    kept = {"namespace": "shop.goods", "command": "find", "duration_ms": 5.5, "remote": "127.0.0.1:5"}
    assert {name: line[name] for name in kept} == kept
    assert line["query"] == line["migration"] == "###"
    assert line["msg"] == "Slow operation"


def test_errors_keep_their_kind_and_place(log_path: Path) -> None:
    try:
        raise ValueError(f"duplicate key {DATA}") from KeyError(DATA)
    except ValueError as error:
        get_logger("test").exception("Internal error in a command", error=str(error))
    logging.getLogger("library").warning("a document: %s", DATA)
    text = log_path.read_text()
    assert DATA not in text
    assert "test_redaction.py" in text
    assert "ValueError: ###" in text
    assert json.loads(text.splitlines()[1])["msg"] == "###"
