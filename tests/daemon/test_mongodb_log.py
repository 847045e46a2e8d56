"""Log lines in mongod's form."""

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwright.daemon.log_formats import OWN_IDS_FROM, REDACTION, component_of, own_id
from shardwright.daemon.logs import LogFormat, LogSink, configure_logs
from shardwright.wire.logger import get_logger


@pytest.fixture
def log(tmp_path: Path) -> Iterator[Path]:
    """The file of a log in mongod's form; pytest's root logger is restored."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    path = tmp_path / "daemon.log"
    configure_logs("info", path, log_format=LogFormat.MONGODB)
    yield path
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        if isinstance(handler, LogSink):
            handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)


def last_line(log: Path) -> dict[str, Any]:
    line: dict[str, Any] = json.loads(log.read_text(encoding="utf-8").splitlines()[-1])
    date = line.pop("t")["$date"]
    assert date.endswith("+00:00")
    assert len(date) == len("2026-01-31T12:00:00.000+00:00")
    return line


def test_a_line_that_mongod_has_too_has_its_id_and_names(log: Path) -> None:
    get_logger("wire.server").info("Connection accepted", connection_id=7, remote="10.0.0.1:5000", connections=3)
    assert last_line(log) == {
        "s": "I",
        "c": "NETWORK",
        "id": 22943,
        "ctx": "listener",
        "msg": "Connection accepted",
        "attr": {"connectionId": 7, "remote": "10.0.0.1:5000", "connectionCount": 3},
    }


def test_a_slow_operation_is_a_slow_query(log: Path) -> None:
    get_logger("shardd.operations").info(
        "Slow operation",
        connection_id=7,
        command="find",
        namespace="a.b",
        duration_ms=120.5,
        documents=4,
        reply_bytes=99,
    )
    line = last_line(log)
    assert (line["id"], line["msg"], line["c"], line["ctx"]) == (51803, "Slow query", "COMMAND", "conn7")
    assert line["attr"]["type"] == "command"
    assert (line["attr"]["ns"], line["attr"]["durationMillis"]) == ("a.b", 120.5)
    assert (line["attr"]["nreturned"], line["attr"]["reslen"]) == (4, 99)


def test_another_line_has_an_id_of_its_sentence(log: Path) -> None:
    get_logger("shardd.migration.donor").warning("Could not move a chunk", to_shard="b")
    line = last_line(log)
    assert line["id"] == own_id("Could not move a chunk") >= OWN_IDS_FROM
    assert (line["s"], line["c"], line["ctx"]) == ("W", "MIGRATE", "shardd.migration.donor")
    assert line["attr"] == {"toShard": "b"}


def test_a_line_without_fields_has_no_attributes(log: Path) -> None:
    logging.getLogger("a.library").error("Something %s", "broke")
    assert last_line(log) == {
        "s": "E",
        "c": "-",
        "id": own_id("Something broke"),
        "ctx": "a.library",
        "msg": "Something broke",
    }


def test_a_traceback_is_an_attribute(log: Path) -> None:
    try:
        raise ValueError("no")
    except ValueError:
        get_logger("router.operations").exception("Failed")
    assert "ValueError: no" in last_line(log)["attr"]["traceback"]


def test_the_log_is_redacted_in_this_form_too(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(REDACTION, "is_on", True)
    get_logger("router.commands").info("Slow operation", connection_id=7, app_name="secret", duration_ms=1)
    assert last_line(log)["attr"]["appName"] == "###"


def test_the_nearest_logger_decides_about_the_component() -> None:
    assert component_of("router.commands") == "COMMAND"
    assert component_of("router.shards") == "SHARDING"
    assert component_of("shardd.migration.donor.x") == "MIGRATE"
    assert component_of("trio") == "-"
