"""The reference of all options: a JSON schema of each daemon's file, and a page of the documentation.

``python -m shardwright.daemon.configuration.reference DOCS`` writes both.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from shardwright.daemon.configuration.file import FIXED, FixedKey
from shardwright.daemon.configuration.option import Option, Program
from shardwright.daemon.configuration.table import PROGRAMS

PAGE: Final = "options.md"
SCHEMAS: Final = "schemas"

_INTRODUCTION: Final = """\
# Options of the daemons

`python -m shardwright.daemon.configuration.reference docs` writes this page from the table of options.
Each option can be set on the command line, in the environment and in a file ([configuration.md](configuration.md)).
Options marked with ↻ are applied at SIGHUP to a running daemon.
The balancer's settings are in [balancing.md](balancing.md#settings).
"""

_HEAD: Final = """\
| Option | Key in a file | Value | Default | Meaning |
| --- | --- | --- | --- | --- |"""


def schema(program: Program) -> dict[str, Any]:
    """Build the JSON schema of a daemon's file."""
    root = _section()
    for option in program.options:
        value: dict[str, Any] = (
            {"type": ["string", "number", "boolean"]} if option.is_mapping else {**option.type.schema}
        )
        described = {**value, "description": option.help}
        if option.is_mapping:
            known = _at(root, option.path).get("properties", {})
            described = {**_section(), "properties": known, "additionalProperties": value, "description": option.help}
        elif option.default is not None:
            described["default"] = option.type.in_file(option.default)
        _put(root, option.path, described)
    for path, fixed in FIXED.items():
        words = (program.cluster_role,) if path == "sharding.clusterRole" and program.cluster_role else fixed.accepted
        if words is None:
            _put(root, path, {"description": fixed.reason})
        elif words:
            values = [{"true": True, "false": False}.get(word, word) for word in words]
            _put(root, path, {"enum": values, "description": fixed.reason})
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": program.name, **root}


def schema_text(program: Program) -> str:
    """Return the schema as the contents of its file."""
    return json.dumps(schema(program), indent=2, ensure_ascii=False) + "\n"


def page() -> str:
    """Return the page of the documentation."""
    options = {option.name: option for program in PROGRAMS for option in program.options}
    sections: dict[str, list[Option]] = {}
    for option in options.values():
        sections.setdefault(option.section, []).append(option)
    parts = [_INTRODUCTION]
    for section, members in sections.items():
        rows = "\n".join(map(_row, members))
        parts.append(f"## {section}\n\n{_HEAD}\n{rows}\n")
    rows = "\n".join(f"| `{path}` | {_accepted(fixed)} | {_cell(fixed.reason)} |" for path, fixed in FIXED.items())
    parts.append(
        "## Keys of MongoDB with one meaning\n\nA file may have these keys with the listed values only.\n\n"
        f"| Key | Accepted | Because |\n| --- | --- | --- |\n{rows}\n"
    )
    return "\n".join(parts)


def _row(option: Option) -> str:
    programs = [program.name for program in PROGRAMS if option.name in {each.name for each in program.options}]
    note = (
        ""
        if len(programs) == len(PROGRAMS)
        else f" ({', '.join(each.removeprefix('shardwright-') for each in programs)})"
    )
    mark = " ↻" if option.is_reloadable else ""
    default = {"port": "27017, 27018, 27019"}.get(option.name, option.shown_default)
    return (
        f"| `--{option.name}`{mark} | `{option.path}` | `{_cell(option.type.metavar)}` | {_cell(default)} "
        f"| {_cell(option.help)}{note} |"
    )


def _accepted(fixed: FixedKey) -> str:
    if fixed.accepted is None:
        return "any value"
    return ", ".join(f"`{word}`" for word in fixed.accepted) or "none"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _section() -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": {}}


def _at(root: dict[str, Any], path: str) -> dict[str, Any]:
    """Return the part of a schema for a path, or an empty one."""
    found = root
    for name in path.split("."):
        found = found.get("properties", {}).get(name, {})
    return found


def _put(root: dict[str, Any], path: str, value: dict[str, Any]) -> None:
    *sections, name = path.split(".")
    for section in sections:
        root = root["properties"].setdefault(section, _section())
    root["properties"][name] = value


def main() -> int:
    """Write the page and the schemas into the given folder; return the exit code."""
    docs = Path(sys.argv[1])
    (docs / PAGE).write_text(page(), encoding="utf-8")
    (docs / SCHEMAS).mkdir(exist_ok=True)
    for program in PROGRAMS:
        (docs / SCHEMAS / f"{program.name}.json").write_text(schema_text(program), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
