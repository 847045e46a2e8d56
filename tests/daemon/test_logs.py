"""Log lines: their format, their cost if they are not written, and what getLog returns."""

import io
import json
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from shardwright.daemon.logs import (
    LINES_MAX,
    LogSink,
    RecentLog,
    configure_logs,
    log_uncaught_exceptions,
    set_level,
)
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.logger import get_logger


@pytest.fixture(autouse=True)
def _root_logger() -> Iterator[None]:
    """Restore pytest's root logger after the test."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    for handler in root.handlers[:]:
        root.removeHandler(handler)
        if isinstance(handler, LogSink):
            handler.close()
    for handler in handlers:
        root.addHandler(handler)
    root.setLevel(level)
    logging.captureWarnings(False)


@pytest.fixture
def log_path(tmp_path: Path) -> Path:
    path = tmp_path / "daemon.log"
    configure_logs("info", path)
    return path


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_line_is_one_json_object_with_its_fields(log_path: Path) -> None:
    get_logger("router.cache").info("Refreshed 100 % of it\nall", namespace="db.c", duration_ms=1.5, shard=None)
    (line,) = lines_of(log_path)
    timestamp = line.pop("t")
    assert line == {
        "level": "info",
        "component": "router.cache",
        "msg": "Refreshed 100 % of it\nall",
        "namespace": "db.c",
        "duration_ms": 1.5,
        "shard": None,
    }
    assert len(timestamp) == len("2026-01-31T12:00:00.000Z")
    assert timestamp.endswith("Z")


def test_a_bound_logger_adds_its_fields_to_each_line(log_path: Path) -> None:
    logger = get_logger("shardd.migration.donor").bind(namespace="db.c", session="s0").bind(session="s1")
    logger.info("Resuming a migration", position=7)
    logger.warning("Could not release the recipient", namespace="db.d")
    kept = [{name: line[name] for name in ("component", "namespace", "session")} for line in lines_of(log_path)]
    assert kept == [
        {"component": "shardd.migration.donor", "namespace": namespace, "session": "s1"}
        for namespace in ("db.c", "db.d")
    ]


@pytest.mark.parametrize("library", ["pymongo.topology", "trio.abc.Instrument"])
def test_lines_of_libraries_have_the_same_form(log_path: Path, library: str) -> None:
    logging.getLogger(library).warning("Lost %s", "a member", extra={"remote": "h:1"})
    (line,) = lines_of(log_path)
    assert (line["component"], line["level"], line["msg"]) == (library, "warning", "Lost a member")
    assert line["remote"] == "h:1"


@pytest.mark.filterwarnings("default")
def test_a_python_warning_is_logged(log_path: Path) -> None:
    warnings.warn("is going away", DeprecationWarning, stacklevel=1)
    (line,) = lines_of(log_path)
    assert (line["component"], line["level"]) == ("py.warnings", "warning")
    assert "is going away" in line["msg"]


@pytest.fixture
def _hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the interpreter's hooks after the test."""
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    monkeypatch.setattr(sys, "unraisablehook", sys.unraisablehook)


@pytest.mark.usefixtures("_hooks")
def test_an_uncaught_exception_is_logged(log_path: Path) -> None:
    log_uncaught_exceptions()
    try:
        raise KeyError("missing")
    except KeyError as error:
        caught = error
    sys.excepthook(KeyError, caught, caught.__traceback__)
    (line,) = lines_of(log_path)
    assert (line["level"], line["msg"]) == ("error", "Uncaught exception")
    assert line["traceback"].startswith("Traceback")
    assert line["traceback"].endswith("KeyError: 'missing'")


class _Faulty:
    def __del__(self) -> None:
        raise KeyError("missing")


@pytest.mark.usefixtures("_hooks")
def test_an_exception_ignored_by_the_interpreter_is_logged(log_path: Path) -> None:
    log_uncaught_exceptions()
    _Faulty()
    (line,) = lines_of(log_path)
    assert (line["level"], line["msg"]) == ("error", "Exception ignored")
    assert "_Faulty.__del__" in line["where"]
    assert line["traceback"].endswith("KeyError: 'missing'")


def test_fields_do_not_replace_those_of_the_line(log_path: Path) -> None:
    get_logger("router").error("Failed", level="none", component="none", t=0)
    (line,) = lines_of(log_path)
    assert (line["level"], line["component"]) == ("error", "router")
    assert line["t"] != 0


def test_an_exception_is_logged_with_its_traceback(log_path: Path) -> None:
    logger = get_logger("router")
    try:
        raise KeyError("missing")
    except KeyError:
        logger.exception("Failed")
    (line,) = lines_of(log_path)
    assert "KeyError: 'missing'" in line["traceback"]


def test_values_that_json_lacks_are_written_as_strings(log_path: Path) -> None:
    get_logger("router").info("Said", path=Path("/x"), raw=b"\0", name="größe")
    (line,) = lines_of(log_path)
    assert (line["path"], line["raw"], line["name"]) == ("/x", "b'\\x00'", "größe")


def test_a_line_below_the_level_is_neither_written_nor_built(log_path: Path) -> None:
    built: list[str] = []

    def document() -> str:
        built.append("document")
        return "built"

    logger = get_logger("router")
    logger.debug("Looked at", document=document)
    assert (built, lines_of(log_path)) == ([], [])
    set_level("debug")
    logger.debug("Looked at", document=document)
    assert built == ["document"]
    assert [line["document"] for line in lines_of(log_path)] == ["built"]


def test_recent_log_keeps_the_last_lines_and_counts_all() -> None:
    log = RecentLog()
    for number in range(LINES_MAX + 10):
        log.add(str(number))
    excerpt = log.excerpt("global")
    assert excerpt.total_lines_written == LINES_MAX + 10
    assert (len(excerpt.lines), excerpt.lines[0], excerpt.lines[-1]) == (LINES_MAX, "10", str(LINES_MAX + 9))


def test_there_are_no_startup_warnings() -> None:
    log = RecentLog()
    log.add("line")
    assert log.excerpt("startupWarnings").lines == ()


def test_another_log_name_is_refused_as_by_mongod() -> None:
    with pytest.raises(CommandError, match="No log named 'foo'") as caught:
        RecentLog().excerpt("foo")
    assert caught.value.code == ErrorCode.OperationFailed


def test_a_stream_failure_does_not_reach_the_caller(capsys: pytest.CaptureFixture[str]) -> None:
    stream = io.StringIO()
    log = RecentLog()
    sink = LogSink(stream, log)
    stream.close()
    sink.handle(logging.makeLogRecord({"msg": "lost", "levelno": logging.INFO}))
    assert "ValueError" in capsys.readouterr().err
    assert log.excerpt("global").total_lines_written == 1
