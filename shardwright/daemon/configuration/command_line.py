"""The command line of a daemon, generated from its options."""

import argparse
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path
from platform import python_version
from typing import Any, Final, NoReturn

from shardwright.daemon.configuration.option import Option, Program
from shardwright.daemon.version import package_version

HIDDEN: Final = "hidden"
"""The section of options between programs, which the help does not list."""


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
