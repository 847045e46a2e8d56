"""A command line parser that suggests the nearest word for a misspelt one."""

import argparse
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Final, NoReturn

_INVALID_CHOICE: Final = re.compile(r"invalid choice: '([^']*)'")
_UNKNOWN: Final = "unrecognized arguments: "
USAGE_ERROR: Final = 2


class SuggestingParser(argparse.ArgumentParser):
    """An argument parser that adds a suggestion to its errors."""

    def parse(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words; without any word, print the help.

        Raises:
            SystemExit: the words are not valid, or there are none.
        """
        if not words:
            self.print_help(sys.stderr)
            self.exit(USAGE_ERROR)
        return self.parse_args(words)

    def error(self, message: str) -> NoReturn:
        """Explain the mistake and exit with status 2."""
        found = _INVALID_CHOICE.search(message)
        if found is not None:
            choices = {str(each) for action in self._actions for each in action.choices or ()}
            message += _suggestion(found[1], choices)
        elif message.startswith(_UNKNOWN):
            parsers = [self, *commands(self).values()]
            options = {each for parser in parsers for action in parser._actions for each in action.option_strings}
            message += _suggestion(message.removeprefix(_UNKNOWN).split()[0].partition("=")[0], options)
        super().error(message)


def commands(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """Return the parsers of a parser's commands, by their names."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            return dict(action.choices)
    return {}


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word nearest to a misspelt one; None if none is near."""
    return next(iter(get_close_matches(word, list(known), n=1)), None)


def version_text() -> str:
    """Return the line that ``--version`` prints."""
    try:
        own = version("shardwright")
    except PackageNotFoundError:  # it runs from a directory or archive without metadata
        own = "unknown"
    return f"shardwright {own} (Python {python_version()})"


def _suggestion(word: str, known: Iterable[str]) -> str:
    found = nearest(word, known)
    return "" if found is None else f" (did you mean {found}?)"
