"""The examples of README and docs run as they are written.

A block without a language is a drawing. ``console`` blocks are commands after a ``$``; ``js`` blocks are for mongosh,
on a cluster that README's quick start has started. ``python`` blocks quote the code. The tutorial starts a cluster of
its own, and all its blocks run in their order. ``sh`` blocks are for several hosts, and run in `tests.deployment`.
"""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import pytest

from shardwright.daemon.configuration.option import argument_parser as daemon_argument_parser
from shardwright.daemon.configuration.table import ROUTER, SHARDD
from shardwright.deploy.command_line import argument_parser
from shardwright.mongosh_compat.runner import run_code
from tests.local_cluster import COMMAND_TIMEOUT, RunningCluster, shardwright

ROOT: Final = Path(__file__).parent.parent
PAGES: Final = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TUTORIAL: Final = "docs/first-hour.md"

DRAWING: Final = ""
LANGUAGES: Final = (DRAWING, "console", "js", "python", "sh")

LAUNCHER: Final = ".venv/bin/shardwright"
MONGOSH: Final = "node_modules/.bin/mongosh"
PLAIN_URI: Final = "mongodb://127.0.0.1:27017/"
"""The address of a cluster on the default port, replaced by the test cluster's."""

_BLOCK: Final = re.compile(r"^```(?P<language>.*)\n(?P<text>(?:.*\n)*?)^```$", re.MULTILINE)


@dataclass(frozen=True)
class Example:
    """A block of a page."""

    page: str
    language: str
    text: str

    @property
    def commands(self) -> list[str]:
        """The commands typed in a terminal, one per line."""
        lines = [line for line in self.text.splitlines() if line]
        assert all(line.startswith("$ ") for line in lines), f"{self.page}: output is not checked, so leave it out"
        return [part.strip() for line in lines for part in line[2:].partition("#")[0].split("&&")]


EXAMPLES: Final = [
    Example(page.relative_to(ROOT).as_posix(), found["language"], found["text"])
    for page in PAGES
    for found in _BLOCK.finditer(page.read_text(encoding="utf-8"))
]
STEPS_OF_THE_TUTORIAL: Final = [example for example in EXAMPLES if example.page == TUTORIAL]
COMMANDS: Final = sorted(
    {
        command
        for example in EXAMPLES
        if example.language == "console"
        for command in example.commands
        if example.page != TUTORIAL or not command.startswith(LAUNCHER)
    }
)
SCRIPTS: Final = [example for example in EXAMPLES if example.language == "js" and example.page != TUTORIAL]
QUOTATIONS: Final = [example for example in EXAMPLES if example.language == "python"]


@pytest.fixture(scope="module")
def quick_start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningCluster]:
    """The cluster that README's own command starts, but in another directory and on a free port."""
    (command,) = [command for command in COMMANDS if command.startswith(LAUNCHER)]
    directory = tmp_path_factory.mktemp("quick_start")
    options = ["--dir", str(directory), "--port", "0", "--detach", "--json"]
    try:
        completed = shardwright(*shlex.split(command)[1:], *options)
        assert completed.returncode == 0, completed.stderr
        yield RunningCluster(directory, json.loads(completed.stdout))
    finally:
        shardwright("down", "--dir", str(directory))


def test_pages_have_been_merged() -> None:
    pages = [*PAGES, ROOT / "CHANGELOG.md", *(ROOT / "docs" / "design").glob("*.md")]
    markers = re.compile(r"^(<{7}|={7}|>{7})( |$)", re.MULTILINE)
    assert [str(page) for page in pages if markers.search(page.read_text())] == []


def test_blocks_say_what_they_are() -> None:
    assert {example.language for example in EXAMPLES} <= set(LANGUAGES)
    assert COMMANDS
    assert SCRIPTS


@pytest.mark.parametrize("command", [command for command in COMMANDS if not command.startswith((LAUNCHER, MONGOSH))])
def test_targets_of_make_are_there(command: str) -> None:
    words = shlex.split(command)
    assert words[0] == "make", f"no test knows how to run {command!r}"
    dry_run = subprocess.run(
        ["make", "--dry-run", *words[1:]], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert dry_run.returncode == 0, dry_run.stderr


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.startswith(MONGOSH)])
def test_mongosh_connects(quick_start: RunningCluster, command: str) -> None:
    assert PLAIN_URI in command
    words = shlex.split(command.replace(PLAIN_URI, quick_start.uri))
    completed = subprocess.run(
        [*words, "--quiet", "--norc", "--eval", "db.hello().msg"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT,
        check=False,
    )
    assert completed.stdout.strip() == "isdbgrid", completed.stderr


@pytest.mark.parametrize("example", SCRIPTS, ids=lambda example: example.page)
def test_scripts_run(quick_start: RunningCluster, example: Example) -> None:
    commits = {"what": "moveChunk.commit"}
    with quick_start.client() as client:
        moves_of_earlier_examples = client.config.changelog.count_documents(commits)
        run_code(quick_start.uri, example.text).check()
        if "moveChunk" in example.text:
            assert sorted(client.config.chunks.distinct("shard")) == ["shard0", "shard1"]
            assert client.config.changelog.count_documents(commits) == moves_of_earlier_examples + 1


def test_steps_of_the_tutorial_run(tmp_path: Path) -> None:
    """Each command of the launcher gets a directory and, to start the cluster, a free port."""
    directory = ["--dir", str(tmp_path / "cluster")]
    cluster: RunningCluster | None = None
    try:
        for step in STEPS_OF_THE_TUTORIAL:
            if step.language == "js":
                assert cluster is not None
                run_code(cluster.uri, step.text).check()
                continue
            for command in step.commands:
                if not command.startswith(LAUNCHER):
                    continue
                words = shlex.split(command)[1:]
                started = ["--port", "0", "--json"] if words[0] == "up" else []
                completed = shardwright(*words, *directory, *started)
                assert completed.returncode == 0, f"{command}: {completed.stdout}{completed.stderr}"
                if started:
                    cluster = RunningCluster(tmp_path / "cluster", json.loads(completed.stdout))
                elif words[0] == "check":
                    assert cluster is not None
                    with cluster.client() as client:
                        assert client.shop.orders.count_documents({}) == 10_000
                        assert sorted(client.config.chunks.distinct("shard")) == ["shard0", "shard1"]
    finally:
        shardwright("down", *directory)


@pytest.mark.parametrize("example", QUOTATIONS, ids=lambda example: example.page)
def test_quoted_code_is_there(example: Example) -> None:
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "shardwright").rglob("*.py"))
    assert any(example.text in source for source in sources)


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md"])
def test_options_that_a_page_names_are_there(page: str) -> None:
    known = help_of_the_launcher() + "".join(daemon_argument_parser(each).format_help() for each in (ROUTER, SHARDD))
    named = re.findall(r"`(--[a-z-]+)", (ROOT / page).read_text(encoding="utf-8"))
    assert named
    assert [option for option in named if option not in known] == []


@cache
def help_of_the_launcher() -> str:
    """Return the help of the launcher's commands."""
    return "".join(
        subprocess.run(
            [sys.executable, "-m", "shardwright.deploy.cli", command, "--help"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for command in ("up", "status", "down", "kill", "restart")
    )


def test_command_lines_in_sentences_are_understood() -> None:
    text = " ".join(page.read_text(encoding="utf-8") for page in PAGES)
    lines = {" ".join(line.split()) for line in re.findall(r"`(shardwright(?:-router)? [^`]+)`", text)}
    for line in lines:
        words = shlex.split(_without_placeholders(line))
        parser = daemon_argument_parser(ROUTER) if words[0] == "shardwright-router" else argument_parser()
        if "--help" not in words:
            parser.parse_args(words[1:])
    assert len(lines) > 5


def _without_placeholders(line: str) -> str:
    """Fill in the placeholders of a line: ``[optional]`` parts are left out, names and numbers are given."""
    line = re.sub(r"\[.*?\]", "", line)
    line = line.replace("KILL|STOP|CONT|TERM", "KILL").replace("SECONDS", "1")
    return line if not line.endswith("--dir") else f"{line} DIR"
