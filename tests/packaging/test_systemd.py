"""The units for systemd: valid, hardened, and in agreement with the options of the daemons."""

import re
import shlex
import shutil
import subprocess
from configparser import RawConfigParser
from pathlib import Path
from typing import Final

import pytest

from shardwright.daemon import process_environment
from shardwright.daemon.configuration.configuration import configuration
from shardwright.daemon.configuration.option import Program, argument_parser
from shardwright.daemon.configuration.table import PROGRAMS

FOLDER: Final = Path(__file__).parents[2] / "packaging" / "systemd"
UNITS: Final = sorted(FOLDER.glob("*.service"))
EXPOSURE_MAX: Final = 3.0
SECONDS_MAX: Final = 60.0

needs_systemd = pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze")


class Unit(RawConfigParser):
    """A unit as a mapping; of keys that are given several times all values count, in lines."""

    def __init__(self, path: Path) -> None:
        super().__init__(strict=False, comment_prefixes=("#",), interpolation=None)
        self.optionxform = str  # type: ignore[assignment, method-assign]
        self.read_string(path.read_text(encoding="utf-8"))
        self.all = [line.partition("=")[::2] for line in path.read_text(encoding="utf-8").splitlines() if "=" in line]

    def values_of(self, key: str) -> list[str]:
        """All values of a key."""
        return [value for name, value in self.all if name == key]


def program_of(path: Path) -> Program | None:
    """The daemon that a unit starts; None for a mongod."""
    name = path.name.partition(".")[0].removesuffix("@")
    return next((program for program in PROGRAMS if program.name == name), None)


DAEMONS: Final = [path for path in UNITS if program_of(path) is not None]


def test_there_is_a_unit_for_every_daemon_and_the_mongod() -> None:
    assert {path.name for path in UNITS} == {
        "shardwright-configd@.service",
        "shardwright-mongod@.service",
        "shardwright-router.service",
        "shardwright-shardd@.service",
    }
    assert (FOLDER / "shardwright.target").exists()


@pytest.mark.parametrize("path", DAEMONS, ids=lambda path: path.name)
def test_commands_have_options_that_exist(path: Path) -> None:
    program, unit = program_of(path), Unit(path)
    assert program is not None
    known = {flag for action in argument_parser(program)._actions for flag in action.option_strings}
    commands = [shlex.split(line) for key in ("ExecStart", "ExecReload") for line in unit.values_of(key)]
    ours = [words for words in commands if Path(words[0]).name == program.name]
    assert len(ours) == 2
    for words in ours:
        assert {word.partition("=")[0] for word in words if word.startswith("--")} <= known
    assert ["/bin/kill", "-HUP", "$MAINPID"] in commands


@pytest.mark.parametrize("path", DAEMONS, ids=lambda path: path.name)
def test_daemons_notify_and_are_watched(path: Path) -> None:
    service = Unit(path)["Service"]
    assert service["Type"] == "notify"
    assert int(service["WatchdogSec"]) > 10
    assert int(service["LimitNOFILE"]) >= 64_000
    assert service["NotifyAccess"] == ("all" if "router" in path.name else "main")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_belong_to_the_target_and_to_one_user(path: Path) -> None:
    unit = Unit(path)
    assert unit["Unit"]["PartOf"] == unit["Install"]["WantedBy"] == "shardwright.target"
    assert unit["Service"]["User"] in (FOLDER / "sysusers.d" / "shardwright.conf").read_text().split()
    if "shardd" in path.name or "configd" in path.name:
        assert unit["Unit"]["Requires"] == "shardwright-mongod@%i.service"
        assert "shardwright-mongod@%i.service" in unit.values_of("After")


@pytest.mark.parametrize("path", sorted((FOLDER / "examples").glob("*.yaml")), ids=lambda path: path.name)
def test_examples_of_files_are_valid(path: Path) -> None:
    (program,) = [each for each in PROGRAMS if path.name.startswith(each.name.removeprefix("shardwright-"))]
    values = configuration(program, ["--config", str(path)], {}).values
    assert str(values.log_rotate) == "reopen"
    assert path.read_text().startswith(f"# /etc/shardwright/{path.name}\n")
    if program.cluster_role is not None:
        text = (FOLDER / "examples" / f"mongod-{path.stem.partition('-')[2]}.conf").read_text()
        port = re.search(r"^  port: (\d+)$", text, re.MULTILINE)
        assert port is not None
        assert values.mongod_socket == f"/run/shardwright/mongodb-{port[1]}.sock"
        assert values.mongod_address.endswith(f":{port[1]}")
        assert "enableTestCommands: true" in text
        assert "oplogNetworkTimeoutBufferSeconds: 1" in text


@pytest.mark.parametrize("unit", ["shardwright-router", "shardwright-shardd@", "shardwright-configd@"])
def test_a_daemon_that_does_not_fit_the_cluster_is_not_restarted(unit: str) -> None:
    text = (FOLDER / f"{unit}.service").read_text()
    assert f"RestartPreventExitStatus=2 {process_environment.EXIT_NEED_DOWNGRADE}\n" in text


@needs_systemd
def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    """With programs that exist here in place of the installed ones."""
    for path in (*UNITS, FOLDER / "shardwright.target"):
        text = re.sub(r"/usr/bin/(shardwright-\w+|mongod)", "/bin/true", path.read_text())
        (tmp_path / path.name).write_text(text)
    names = [path.name.replace("@.", "@shard0.") for path in (*UNITS, FOLDER / "shardwright.target")]
    completed = subprocess.run(
        ["systemd-analyze", "verify", *names],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
        env={"SYSTEMD_UNIT_PATH": f"{tmp_path}:", "PATH": "/usr/bin:/bin"},
    )
    assert (completed.returncode, completed.stderr) == (0, "")


@needs_systemd
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.name)
def test_units_are_hardened(path: Path) -> None:
    completed = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={int(EXPOSURE_MAX * 10)}", str(path)],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert completed.returncode == 0, completed.stdout
    assert "Overall exposure level" in completed.stdout


@pytest.mark.skipif(shutil.which("systemd-sysusers") is None, reason="no systemd-sysusers")
def test_the_user_is_created(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    command = ["systemd-sysusers", f"--root={tmp_path}", str(FOLDER / "sysusers.d" / "shardwright.conf")]
    subprocess.run(command, capture_output=True, timeout=SECONDS_MAX, check=True)
    assert "/var/lib/shardwright:/usr/sbin/nologin" in (tmp_path / "etc" / "passwd").read_text()


def test_directories_of_tmpfiles_and_units_agree() -> None:
    lines = [line.split() for line in (FOLDER / "tmpfiles.d" / "shardwright.conf").read_text().splitlines()]
    created = {words[1]: words[2] for words in lines if words[0] == "d"}
    assert created["/run/shardwright"] == "0700"
    for path in UNITS:
        writable = Unit(path)["Service"]["ReadWritePaths"].split()
        assert set(writable) <= created.keys()
