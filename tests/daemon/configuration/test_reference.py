"""The reference page and the schemas agree with the table of options."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from shardwright.config_servers.catalog_client import READ_SECONDS_MAX
from shardwright.daemon.configuration.configuration import as_file, configuration
from shardwright.daemon.configuration.option import Program
from shardwright.daemon.configuration.reference import PAGE, SCHEMAS, page, schema, schema_text
from shardwright.daemon.configuration.table import CATALOG_SECONDS, PROGRAMS, WORKERS_MAX
from shardwright.router.cursors.open_cursor import WORKERS_MAX as WORKERS_OF_CURSOR_IDS

DOCS = Path(__file__).parents[3] / "docs"

HOW = "run: python -m shardwright.daemon.configuration.reference docs"


def test_the_page_is_up_to_date() -> None:
    assert (DOCS / PAGE).read_text(encoding="utf-8") == page(), HOW


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_the_schema_is_up_to_date(program: Program) -> None:
    assert (DOCS / SCHEMAS / f"{program.name}.json").read_text(encoding="utf-8") == schema_text(program), HOW


def keys(part: dict[str, Any], prefix: str = "") -> set[str]:
    """The paths of all values in a schema."""
    found = set()
    for name, value in part["properties"].items():
        found |= keys(value, f"{prefix}{name}.") if "properties" in value else {f"{prefix}{name}"}
    return found


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_schema_has_every_option(program: Program) -> None:
    found = keys(json.loads(schema_text(program)))
    assert {option.path for option in program.options if not option.is_mapping} <= found


def faults(value: Any, part: dict[str, Any], where: str = "") -> list[str]:  # noqa: ANN401 - any JSON
    """Return the violations of a schema of this kind by a value."""
    if "properties" in part:
        known = part["properties"]
        unknown = [f"{where}.{name}" for name in value if name not in known and not part["additionalProperties"]]
        return unknown + [
            fault for name in value if name in known for fault in faults(value[name], known[name], f"{where}.{name}")
        ]
    if "enum" in part:
        return [] if value in part["enum"] else [where]
    types: dict[str, tuple[type, ...]] = {
        "string": (str,),
        "integer": (int,),
        "number": (int, float),
        "boolean": (bool,),
    }
    return [] if isinstance(value, types[part["type"]]) else [where]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_a_printed_configuration_fits_the_schema(program: Program) -> None:
    given = {"configdb": "cfg/a:1", "mongod-socket": "/m.sock", "mongod-address": "a:1", "max-connections": "5"}
    words = [f"--{name}={value}" for name, value in given.items() if name in {each.name for each in program.options}]
    printed = yaml.safe_load(as_file(configuration(program, words, {})))
    assert faults(printed, schema(program)) == []
    assert faults({**printed, "nett": 1}, schema(program)) == [".nett"]
    assert faults({"net": {"port": "x"}}, schema(program)) == [".net.port"]


def test_defaults_are_those_of_the_router() -> None:
    assert CATALOG_SECONDS == READ_SECONDS_MAX
    assert WORKERS_MAX <= WORKERS_OF_CURSOR_IDS
