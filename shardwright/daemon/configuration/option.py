"""One option of a daemon: its names in all sources, its type, its description, and its place on the command line."""

import argparse
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from platform import python_version
from typing import Any, Final, NoReturn

from shardwright.daemon.option_values import (
    parse_addresses,
    parse_boolean,
    parse_count,
    parse_milliseconds,
    parse_number,
    parse_port,
    parse_seconds,
)
from shardwright.daemon.version import package_version

ENVIRONMENT_PREFIX: Final = "SHARDWRIGHT_"

HIDDEN: Final = "hidden"
"""The section of options between programs, which the help does not list."""


@dataclass(frozen=True, slots=True)
class ValueType:
    """The type of an option's value.

    Attributes:
        parse: converts text; raises ValueError with a message for the user.
        schema: the JSON schema of the value in a file.
    """

    parse: Callable[[str], Any]
    schema: Mapping[str, Any]
    metavar: str

    def in_file(self, text: str) -> str | int | float | bool:
        """Convert valid text to the value in a file."""
        kind = self.schema.get("type")
        if kind == "boolean":
            return parse_boolean(text)
        if kind == "integer":
            return int(text)
        return float(text) if kind == "number" else text


TEXT: Final = ValueType(str, {"type": "string"}, "TEXT")

PATH: Final = ValueType(Path, {"type": "string"}, "PATH")

PORT: Final = ValueType(parse_port, {"type": "integer", "minimum": 0, "maximum": 65535}, "PORT")

COUNT: Final = ValueType(parse_count, {"type": "integer", "minimum": 1}, "N")

NUMBER: Final = ValueType(parse_number, {"type": "integer", "minimum": 0}, "N")

SECONDS: Final = ValueType(parse_seconds, {"type": "number", "exclusiveMinimum": 0}, "SECONDS")

MILLISECONDS: Final = ValueType(parse_milliseconds, {"type": "integer", "minimum": 0}, "MILLISECONDS")

BOOLEAN: Final = ValueType(parse_boolean, {"type": "boolean"}, "true|false")

ADDRESSES: Final = ValueType(parse_addresses, {"type": "string"}, "ADDRESSES")


def text_type(parse: Callable[[str], Any], metavar: str) -> ValueType:
    """Return the type of text with a special format."""
    return ValueType(parse, {"type": "string"}, metavar)


def choice(values: Mapping[str, Any], also: Mapping[str, Any] | None = None) -> ValueType:
    """Return the type of a value that is one of several words; the help does not list the words of `also`."""
    known = {**values, **(also or {})}

    def parse(text: str) -> Any:  # noqa: ANN401 - values of all types
        if text not in known:
            raise ValueError(f"invalid choice: {text!r} (choose from {', '.join(values)})")
        return known[text]

    return ValueType(parse, {"enum": [int(word) if word.isdigit() else word for word in known]}, "|".join(values))


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option of one or several daemons.

    Attributes:
        name: on the command line, without dashes.
        path: in a file, with dots between the levels.
        help: one sentence, without its default.
        default: the text of the default value; None if ``unset`` is the default.
        unset: the default without ``default``.
        default_text: describes the behaviour without a value; None if ``default`` is clear enough.
        section: the heading under which help and reference list it.
        is_required: whether a source must set it.
        is_reloadable: whether SIGHUP applies a changed value to a running daemon.
        is_mapping: whether it may be given several times, as NAME=VALUE; in a file it is a mapping.
    """

    name: str
    path: str
    type: ValueType
    help: str
    section: str
    default: str | None = None
    unset: Any = None
    default_text: str | None = None
    is_required: bool = False
    is_reloadable: bool = False
    is_mapping: bool = False

    @property
    def attribute(self) -> str:
        """The attribute with the value in the namespace of all options."""
        return "parameters" if self.is_mapping else self.name.replace("-", "_")

    @property
    def variable(self) -> str:
        """The environment variable."""
        return ENVIRONMENT_PREFIX + self.name.upper().replace("-", "_")

    @property
    def shown_default(self) -> str:
        """The default for help and reference."""
        return "required" if self.is_required else self.default_text or self.default or "none"

    def default_value(self) -> Any:  # noqa: ANN401 - values of all types
        """Return the value of the option if no source sets it."""
        return self.unset if self.default is None else self.type.parse(self.default)


@dataclass(frozen=True, slots=True)
class Program:
    """A daemon's program and its options.

    Attributes:
        options: in the order of the help.
        cluster_role: the value of ``sharding.clusterRole`` in its file; None if it has no role.
    """

    name: str
    description: str
    options: tuple[Option, ...]
    cluster_role: str | None = None

    @classmethod
    def of(
        cls, name: str, description: str, port: int, options: tuple[Option, ...], cluster_role: str | None = None
    ) -> "Program":
        """Build a program with a different default for the option ``port``."""
        own = (replace(each, default=str(port)) if each.name == "port" else each for each in options)
        return cls(name, description, tuple(own), cluster_role)

    def option(self, name: str) -> Option:
        """Return the option of that name; KeyError if there is none."""
        return {each.name: each for each in self.options}[name]


class OptionParser(argparse.ArgumentParser):
    """A parser that suggests the nearest option for an unknown one."""

    def error(self, message: str) -> NoReturn:
        """Explain the mistake and exit with status 2."""
        prefix = "unrecognized arguments: "
        if message.startswith(prefix):
            word = message.removeprefix(prefix).split()[0].partition("=")[0]
            known = [each for action in self._actions for each in action.option_strings]
            for nearest in get_close_matches(word, known, n=1):
                message += f" (did you mean {nearest}?)"
        super().error(message)


def argument_parser(program: Program, hidden: Iterable[Option] = ()) -> OptionParser:
    """Return the parser of a program's command line.

    Its namespace has the checked text of each given option, as a list for a mapping, and no attribute for the others.

    Args:
        hidden: further options, which the help does not list.
    """
    parser = OptionParser(
        prog=program.name,
        description=program.description,
        epilog="Every option can also be set by an environment variable, for example SHARDWRIGHT_BIND_IP, and in the "
        "file of --config. The command line takes precedence over the environment, and the environment over the file.",
        argument_default=argparse.SUPPRESS,
    )
    parser.add_argument("--version", action="version", version=version_text(program.name))
    parser.add_argument("--config", type=Path, metavar="FILE", help="read options from this YAML file")
    parser.add_argument("--check-config", action="store_true", help="check the configuration, start nothing, and exit")
    parser.add_argument("--print-config", action="store_true", help="print the configuration as such a file, and exit")
    add_options(parser, program)
    for option in hidden:
        _add(parser, option, argparse.SUPPRESS)
    return parser


def add_options(parser: argparse.ArgumentParser, program: Program) -> None:
    """Add the options of a program to a parser, under their headings."""
    sections: dict[str, argparse._ArgumentGroup] = {}
    for option in program.options:
        if option.section not in sections:
            sections[option.section] = parser.add_argument_group(option.section)
        help_text = f"{option.help} (default: {option.shown_default})".replace("(default: required)", "(required)")
        _add(sections[option.section], option, help_text.replace("%", "%%"))


def _add(parser: argparse._ActionsContainer, option: Option, help_text: str) -> None:
    flag, check = f"--{option.name}", _checked(option)
    # An option that is not given has no attribute, whatever the default of its parser.
    given: dict[str, Any] = {
        "type": check,
        "metavar": option.type.metavar,
        "help": help_text,
        "default": argparse.SUPPRESS,
    }
    if option.is_mapping:
        parser.add_argument(flag, dest=option.attribute, action="append", **given)
    elif option.type.schema.get("type") == "boolean":
        parser.add_argument(flag, nargs="?", const="true", **given)
    else:
        parser.add_argument(flag, **given)


def _checked(option: Option) -> Callable[[str], str]:
    """Return a function that checks that the option can parse a text, and returns the text."""

    def check(text: str) -> str:
        try:
            option.type.parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error
        return text

    return check


def version_text(program: str) -> str:
    """Return the line that ``--version`` prints."""
    return f"{program} {package_version()} (Python {python_version()})"
