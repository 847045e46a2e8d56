"""The configuration of one process, with each option from the source that has precedence, and its displays.

The command line has precedence over the environment, and the environment over the file. The configuration is shown as a
file, in ``getCmdLineOpts`` and in the log. No option holds a secret: passwords and keys are in files, and options only
name these.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

from shardwright.daemon.configuration.file import ConfigurationError, FileOptions, read_file
from shardwright.daemon.configuration.option import ENVIRONMENT_PREFIX, Option, Program, argument_parser
from shardwright.daemon.configuration.table import PROGRAMS

ParseParameter = Callable[[str], tuple[str, Any]]
"""Parses NAME=VALUE of a server parameter; raises ValueError with a message for the user."""

COPY_OF_FILE: Final = "worker-config"
"""The hidden option with the path of a copy, which is read in place of the file of ``--config``."""

COMMAND_LINE: Final = "the command line"

_OF_OTHER_PROGRAMS: Final = frozenset(
    ENVIRONMENT_PREFIX + name for name in ("CONFIG", "MONGOD", "MONGOSH", "PORTS", "PROCESS")
)


@dataclass(frozen=True, slots=True)
class Given:
    """An option's value from one source.

    Attributes:
        text: the value; of a mapping, one NAME=VALUE.
        source: for errors: the command line, the environment variable, or the file and line.
    """

    text: str
    source: str


@dataclass(frozen=True)
class Configuration:
    """The options of a process.

    Attributes:
        values: all options by attribute, parsed, with defaults.
        given: the values that sources set; only mappings have several.
        warnings: for the log, about variables that may be misspelt.
    """

    program: Program
    values: argparse.Namespace
    given: Mapping[str, Sequence[Given]]
    words: tuple[str, ...]
    file: Path | None = None
    wants_check: bool = False
    wants_print: bool = False
    warnings: tuple[str, ...] = ()
    parse_parameter: ParseParameter | None = field(default=None, repr=False)
    hidden: tuple[Option, ...] = ()

    def read_again(self, environment: Mapping[str, str] = os.environ) -> "Configuration":
        """Read the configuration again, from the same command line and the current file.

        Raises:
            OSError: the file cannot be read.
            ConfigurationError: it is not valid any more.
        """
        parsed = argument_parser(self.program, self.hidden).parse_args(self.words)
        return _combined(self.program, self.words, parsed, environment, self.parse_parameter, self.hidden)


def configuration(
    program: Program,
    words: Sequence[str] | None = None,
    environment: Mapping[str, str] | None = None,
    *,
    parse_parameter: ParseParameter | None = None,
    hidden: tuple[Option, ...] = (),
) -> Configuration:
    """Read the configuration of this process.

    Args:
        words: its command line; None for the process's own.
        environment: its environment; None for the process's own.
        hidden: see `argument_parser`.

    Raises:
        SystemExit: it is invalid, or only help or version was requested; the reason has been printed.
    """
    own = tuple(sys.argv[1:] if words is None else words)
    parser = argument_parser(program, hidden)
    parsed = parser.parse_args(own)
    try:
        return _combined(
            program, own, parsed, os.environ if environment is None else environment, parse_parameter, hidden
        )
    except ConfigurationError as error:
        if error.is_of_command_line:
            parser.error(error.mistakes[0])
        parser.exit(2, "".join(f"{program.name}: {mistake}\n" for mistake in error.mistakes))
    except OSError as error:
        parser.exit(2, f"{program.name}: {error.filename}: {error.strerror}\n")


def configuration_of_file(program: Program, path: Path) -> Configuration:
    """Read the configuration of a daemon from a file alone, for programs that prepare or examine daemons.

    Raises:
        OSError: the file cannot be read.
        ConfigurationError: it is invalid.
    """
    words = ("--config", str(path))
    return _combined(program, words, argument_parser(program).parse_args(words), {}, None, ())


def configuration_of(
    program: Program, parsed: argparse.Namespace, environment: Mapping[str, str] | None = None
) -> Configuration:
    """Read the configuration of a program whose options are part of another command line.

    Args:
        parsed: the texts of the given options, and ``config`` if given.
        environment: see `configuration`.

    Raises:
        OSError: the file cannot be read.
        ConfigurationError: it is invalid.
    """
    return _combined(program, (), parsed, os.environ if environment is None else environment, None, ())


def _combined(
    program: Program,
    words: tuple[str, ...],
    parsed: argparse.Namespace,
    environment: Mapping[str, str],
    parse_parameter: ParseParameter | None,
    hidden: tuple[Option, ...],
) -> Configuration:
    options = (*program.options, *hidden)
    path = getattr(parsed, "config", None) or environment.get(f"{ENVIRONMENT_PREFIX}CONFIG") or None
    in_file = FileOptions({}, ())
    if path is not None:
        others = [each for each in PROGRAMS if each.name != program.name]
        copy = getattr(parsed, COPY_OF_FILE.replace("-", "_"), path)
        in_file = read_file(Path(copy), program, others, str(path))
    given: dict[str, list[Given]] = {}
    for option in options:
        values = [Given(value.text, f"{value.where}: {option.path}") for value in in_file.values.get(option.name, ())]
        of_environment = () if option in hidden else _from_environment(option, environment)
        for later in (of_environment, _from_command_line(option, parsed)):
            values = [*values, *later] if option.is_mapping else [*later] or values
        if values:
            given[option.name] = values
    values_of_all = argparse.Namespace()
    mistakes = list(in_file.mistakes)
    for option in options:
        try:
            value = _value(option, given.get(option.name, ()), parse_parameter)
        except ConfigurationError as error:
            mistakes += error.mistakes
        else:
            setattr(values_of_all, option.attribute, value)
    required = [option for option in options if option.is_required and option.name not in given]
    missing = [f"--{option.name}" for option in required if option.name not in in_file.values]
    if missing:
        mistakes.append(f"the following arguments are required: {', '.join(missing)}")
    if mistakes:
        raise ConfigurationError(mistakes, is_of_command_line=bool(missing) and len(mistakes) == 1)
    return Configuration(
        program,
        values_of_all,
        given,
        words,
        None if path is None else Path(path),
        wants_check=getattr(parsed, "check_config", False),
        wants_print=getattr(parsed, "print_config", False),
        warnings=tuple(_misspelt_variables(environment)),
        parse_parameter=parse_parameter,
        hidden=hidden,
    )


def _from_environment(option: Option, environment: Mapping[str, str]) -> list[Given]:
    text = environment.get(option.variable, "")
    if not text:
        return []
    return [Given(each, option.variable) for each in (text.split(",") if option.is_mapping else (text,))]


def _from_command_line(option: Option, parsed: argparse.Namespace) -> list[Given]:
    found = getattr(parsed, option.attribute, [])
    return [Given(text, COMMAND_LINE) for text in (found if isinstance(found, list) else [found])]


def _value(option: Option, given: Iterable[Given], parse_parameter: ParseParameter | None) -> Any:  # noqa: ANN401
    """Return the parsed value of an option."""
    values: list[Any] = []
    mistakes: list[str] = []
    for each in given:
        parse = parse_parameter if option.is_mapping and parse_parameter is not None else option.type.parse
        try:
            values.append(parse(each.text))
        except ValueError as error:
            source = f"argument --{option.name}" if each.source == COMMAND_LINE else each.source
            mistakes.append(f"{source}: {error}")
    if mistakes:
        raise ConfigurationError(mistakes)
    if option.is_mapping:
        return dict(values)
    return values[0] if values else option.default_value()


def _misspelt_variables(environment: Mapping[str, str]) -> Iterator[str]:
    """Yield warnings about variables with nearly an option's name; others may belong to other programs."""
    known = {option.variable for program in PROGRAMS for option in program.options} | _OF_OTHER_PROGRAMS
    for name in sorted(environment):
        if name.startswith(ENVIRONMENT_PREFIX) and name not in known:
            for nearest in get_close_matches(name, known, n=1, cutoff=0.9):
                yield f"{name} is ignored; did you mean {nearest}?"


def nested_options(configuration: Configuration) -> dict[str, Any]:
    """Return the given options as sections, like ``parsed`` of ``getCmdLineOpts``; server parameters are text."""
    document: dict[str, Any] = {} if configuration.file is None else {"config": str(configuration.file)}
    for option, value in _given(configuration):
        put_path(document, option.path, value)
    return _sorted(document)


def flat_options(configuration: Configuration) -> dict[str, Any]:
    """Return the given options by name, for the log."""
    return {option.name: value for option, value in _given(configuration)}


def as_file(configuration: Configuration) -> str:
    """Return the configuration as a file that has the same effect, with defaults."""
    import yaml

    document: dict[str, Any] = {}
    for option in configuration.program.options:
        if option.name not in configuration.given and option.default is not None:
            put_path(document, option.path, option.type.in_file(option.default))
    for option, value in _given(configuration):
        put_path(document, option.path, value)
    text: str = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    return text


def _given(configuration: Configuration) -> Iterator[tuple[Option, Any]]:
    for option in configuration.program.options:
        values = configuration.given.get(option.name, ())
        if option.is_mapping:
            pairs = (each.text.partition("=") for each in values)
            if values:
                yield option, {name: text for name, _, text in pairs}
        elif values:
            yield option, option.type.in_file(values[0].text)


def put_path(document: dict[str, Any], path: str, value: Any) -> None:  # noqa: ANN401 - values of all types
    """Set the value at a path of a document; a mapping is merged into an existing one."""
    *sections, name = path.split(".")
    for section in sections:
        document = document.setdefault(section, {})
    if isinstance(value, dict):
        document.setdefault(name, {}).update(value)
    else:
        document[name] = value


def _sorted(document: dict[str, Any]) -> dict[str, Any]:
    return {name: _sorted(value) if isinstance(value, dict) else value for name, value in sorted(document.items())}
