"""The command line of the console, and its documentation."""

import argparse
import json
from pathlib import Path

import pytest

from shardwright.console.cli import ConsoleError, add_console_options, settings_of
from shardwright.console.settings import CONSOLE, Settings, current, read_targets

ROOT = Path(__file__).parents[2]
URI = "mongodb://127.0.0.1:27017,127.0.0.1:27018/"


def settings(*words: str, uri: str = URI) -> Settings:
    parser = argparse.ArgumentParser()
    add_console_options(parser)
    return settings_of(parser.parse_args(words), uri, "", (), {})[0]


def test_the_page_lists_all_options() -> None:
    rows = [
        f"| `--{option.name}` | `{option.path}` | {option.shown_default} | {option.help} |"
        for option in CONSOLE.options
    ]
    page = (ROOT / "docs/console.md").read_text(encoding="utf-8").splitlines()
    assert [line for line in page if line.startswith("| `--")] == rows


def test_defaults() -> None:
    found = settings()
    assert (found.port, found.bind_ip, found.title, found.idle_seconds) == (
        8027,
        ("127.0.0.1",),
        "127.0.0.1:27017",
        1800,
    )
    assert found.is_on_loopback


def test_a_file_sets_options(tmp_path: Path) -> None:
    file = tmp_path / "console.yml"
    file.write_text("net:\n  port: 9000\nshardwright:\n  console:\n    title: shop\n")
    found = settings("--config", str(file), "--port", "9001")
    assert (found.port, found.title) == (9001, "shop")


@pytest.mark.parametrize(
    ("words", "uri", "reason"),
    [
        (("--bind-ip", "0.0.0.0"), URI, "plain text"),
        (("--idle-minutes", "1"), "mongodb://user:secret@127.0.0.1/", "leave the user out"),
        (("--metrics-targets", "/nowhere.json"), URI, "No such file"),
        ((), "http://127.0.0.1/", "Invalid URI scheme"),
    ],
)
def test_what_is_refused(words: tuple[str, ...], uri: str, reason: str) -> None:
    with pytest.raises(ConsoleError, match=reason) as error:
        settings(*words, uri=uri)
    assert "secret" not in str(error.value)


def test_plain_http_behind_a_proxy() -> None:
    assert not settings("--bind-ip", "0.0.0.0", "--allow-plain-http").is_on_loopback


def test_addresses_of_proxies() -> None:
    assert settings().proxies == ()
    assert tuple(settings("--proxy-addresses", "10.0.0.1,10.0.0.2").proxies) == ("10.0.0.1", "10.0.0.2")


def test_targets_of_prometheus(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"
    file.write_text(
        '[{"targets": ["127.0.0.1:9"], "labels": {"job": "shardwright-shardd", "process": "a", "replica_set": "s"}}]'
    )
    (found,) = read_targets(file)
    assert (found.process, found.address, found.role, found.replica_set) == ("a", "127.0.0.1:9", "shardd", "s")
    file.write_text('{"targets": 1}')
    with pytest.raises(ValueError, match="is not a list of targets"):
        read_targets(file)


def test_targets_change_with_their_file(tmp_path: Path) -> None:
    file = tmp_path / "targets.json"

    def write(*processes: str) -> None:
        groups = [{"targets": ["127.0.0.1:9"], "labels": {"process": each}} for each in processes]
        new = file.with_suffix(".new")
        new.write_text(json.dumps(groups))
        new.replace(file)

    write("a")
    found = settings("--metrics-targets", str(file))
    write("a", "b")
    assert [each.process for each in current(found.targets)] == ["a", "b"]
    file.write_text("[")
    assert [each.process for each in current(found.targets)] == ["a", "b"]
    file.unlink()
    assert [each.process for each in current(found.targets)] == ["a", "b"]
    write("b")
    assert [each.process for each in current(found.targets)] == ["b"]
    assert [each.process for each in found.targets] == ["b"]
