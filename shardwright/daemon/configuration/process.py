"""The configuration of a process about to run: checked as a whole, printed, and read again."""

import argparse
import sys
from collections.abc import Callable, Sequence
from typing import Final, NoReturn

from shardwright.daemon.authentication import read_key_file
from shardwright.daemon.certificates import tls_settings
from shardwright.daemon.configuration.configuration import (
    Configuration,
    ParseParameter,
    as_file,
    configuration,
    flat_options,
)
from shardwright.daemon.configuration.option import Option, Program
from shardwright.daemon.option_values import check_exposure
from shardwright.daemon.run import Introduction, Reread
from shardwright.daemon.version import package_version
from shardwright.wire.tls import ProcessTls

Check = Callable[[argparse.Namespace], None]
"""Refuses options that do not fit together: raises ValueError with a message for the operator."""

USAGE_ERROR: Final = 2


def process_configuration(
    program: Program,
    words: Sequence[str] | None = None,
    *,
    check: Check | None = None,
    parse_parameter: ParseParameter | None = None,
    hidden: tuple[Option, ...] = (),
) -> Configuration:
    """Read and check the configuration of a process about to run.

    Args:
        words: its command line; None for the process's own.
        check: refuses options of this daemon that do not fit together.
        parse_parameter: see `configuration`.
        hidden: see `argument_parser`.

    Raises:
        SystemExit: it is invalid, or was only to be checked or printed.
    """
    found = configuration(program, words, parse_parameter=parse_parameter, hidden=hidden)
    try:
        if check is not None:
            check(found.values)
    except ValueError as error:
        _refuse(program, str(error))
    if found.wants_print:
        print(as_file(found), end="")
    if found.wants_check:
        _check_files(program, found.values)
        print(f"{program.name}: the configuration is valid", file=sys.stderr)
    if found.wants_print or found.wants_check:
        raise SystemExit(0)
    return found


def introduction(found: Configuration) -> Introduction:
    """Return the first line of the log."""
    return Introduction(package_version(), flat_options(found), found.warnings)


class Rereading:
    """A function that reads the configuration of a running process again.

    Args:
        found: the configuration with which it was started.
        check: see `process_configuration`.
    """

    def __init__(self, found: Configuration, check: Check | None = None) -> None:
        self._started = found
        self._applied = found
        self._check = check

    def __call__(self) -> Reread:
        """Return the changes since the last call, and all options that differ from the start and wait for a restart.

        Raises:
            OSError: the file cannot be read.
            ValueError: the configuration is not valid any more; the applied one stays.
        """
        before, after = self._applied, self._applied.read_again()
        check_exposure(after.values)
        if self._check is not None:
            self._check(after.values)
        self._applied = after
        return Reread(
            after.values,
            frozenset(option.attribute for option in _different(before, after) if option.is_reloadable),
            tuple(option.name for option in _different(self._started, after) if not option.is_reloadable),
        )


def _different(before: Configuration, after: Configuration) -> list[Option]:
    return [option for option in before.program.options if _texts(before, option) != _texts(after, option)]


def _texts(found: Configuration, option: Option) -> list[str]:
    """Return the texts of an option's values, from any source."""
    texts = [each.text for each in found.given.get(option.name, ())]
    return texts if texts or option.default is None else [option.default]


def _check_files(program: Program, values: argparse.Namespace) -> None:
    """Refuse key and certificate files with which the daemon would not start."""
    try:
        check_exposure(values)
        sockets = frozenset({values.mongod_socket} if getattr(values, "mongod_tls", False) else ())
        ProcessTls(tls_settings(values, secured_sockets=sockets))
        if values.key_file is not None:
            read_key_file(values.key_file)
    except ValueError as error:
        _refuse(program, str(error))
    except OSError as error:
        _refuse(program, f"{error.filename}: {error.strerror}" if error.filename else str(error))


def _refuse(program: Program, reason: str) -> NoReturn:
    print(f"{program.name}: error: {reason}", file=sys.stderr)
    raise SystemExit(USAGE_ERROR)
