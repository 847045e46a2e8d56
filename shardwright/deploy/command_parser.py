"""The parser of the command line: types of option values, suggestions of the nearest word, and shell completion.

The types raise `argparse.ArgumentTypeError`, with a message for the user, if the text is not valid. The completion
scripts are static, so that a shell does not start an interpreter at every TAB. Process names come from the pid files in
the directory of the cluster.
"""

import argparse
import math
import re
import signal
import sys
from collections.abc import Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import Final, NoReturn

from shardwright.daemon.option_values import parse_host_and_port
from shardwright.deploy.cluster_state import ORPHAN_CLEANUP_DELAY, parse_option, parse_parameter
from shardwright.deploy.layout import DEFAULT_DIRECTORY

_INVALID_CHOICE: Final = re.compile(r"invalid choice: '([^']*)'")
_UNRECOGNIZED: Final = "unrecognized arguments: "
USAGE_ERROR: Final = 2

SHELLS: Final = ("bash", "zsh", "fish")

_TAKES_NAME: Final = "name"
"""The destination of a positional argument for the name of a process."""

_BASH: Final = """\
# bash completion for shardwright: source <(shardwright completion bash)
_shardwright() {{
    local word=${{COMP_WORDS[COMP_CWORD]}} before=${{COMP_WORDS[COMP_CWORD-1]}} directory={directory} words= index
    for ((index = 1; index < COMP_CWORD; index++)); do
        [[ ${{COMP_WORDS[index]}} == --dir ]] && directory=${{COMP_WORDS[index+1]}}
    done
    local names=$(cd "$directory/pids" 2>/dev/null && for each in *.json; do echo "${{each%.json}}"; done)
    case "${{COMP_WORDS[1]}} $before" in
{choices}
    esac
    if [[ -z $words ]]; then
        if ((COMP_CWORD == 1)); then
            words="{commands}"
        else
            case "${{COMP_WORDS[1]}}" in
{options}
            esac
        fi
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
    [[ -n $words ]] || COMPREPLY=($(compgen -f -- "$word"))
}}
complete -o filenames -F _shardwright shardwright
"""

_ZSH_HEAD: Final = """\
# zsh completion for shardwright: source <(shardwright completion zsh)
autoload -U +X bashcompinit && bashcompinit
"""


def signal_of(text: str) -> signal.Signals:
    """Parse a signal's number or name, with or without SIG."""
    try:
        return signal.Signals(int(text)) if text.isdigit() else signal.Signals[f"SIG{text.upper().removeprefix('SIG')}"]
    except (KeyError, ValueError):
        raise argparse.ArgumentTypeError(f"{text!r} is not a signal") from None


def daemon_option(text: str) -> tuple[str, str]:
    """Parse the name and the value of a daemon's option."""
    try:
        return parse_option(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def parameter(text: str) -> tuple[str, str]:
    """Parse the name and the value of a server parameter."""
    try:
        return parse_parameter(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def orphan_cleanup_delay(text: str) -> tuple[str, str]:
    """Parse a whole number of seconds into the server parameter that delays the deletion of orphans."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return ORPHAN_CLEANUP_DELAY, str(int(text))


def amount(text: str) -> float:
    """Parse a number above 0."""
    try:
        amount = float(text)
    except ValueError:
        amount = math.nan
    if not 0 < amount < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return amount


def count(text: str) -> int:
    """Parse a whole number above 0."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def port(text: str) -> int:
    """Parse a TCP port, or 0 for any free one."""
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port")
    return int(text)


def address(text: str) -> str:
    """Parse the address of a server, ``host:port`` or ``[ipv6]:port``."""
    try:
        return str(parse_host_and_port(text))
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
        elif message.startswith(_UNRECOGNIZED):
            parsers = [self, *commands(self).values()]
            options = {each for parser in parsers for action in parser._actions for each in action.option_strings}
            message += _suggestion(message.removeprefix(_UNRECOGNIZED).split()[0].partition("=")[0], options)
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


def completion_script(shell: str, parser: argparse.ArgumentParser) -> str:
    """Generate the script for a shell of `SHELLS`."""
    if shell == "fish":
        return _fish(parser)
    script = _bash(parser)
    if shell == "zsh":
        _, _, body = script.partition("\n")
        return f"{_ZSH_HEAD}{body}"
    return script


def _bash(parser: argparse.ArgumentParser) -> str:
    choices, options = [], []
    for name, command in commands(parser).items():
        for flag, values in _flags_with_choices(command):
            choices.append(f'        "{name} {flag}") words="{" ".join(values)}" ;;')
        words = [*_flags(command), *_positional_words(command)]
        names = " $names" if _takes_name(command) else ""
        options.append(f'                {name}) words="{" ".join(words)}{names}" ;;')
    return _BASH.format(
        directory=DEFAULT_DIRECTORY,
        commands=" ".join([*commands(parser), *_flags(parser)]),
        choices="\n".join(choices),
        options="\n".join(options),
    )


def _fish(parser: argparse.ArgumentParser) -> str:
    lines = [
        "# fish completion for shardwright: shardwright completion fish | source",
        "complete -c shardwright -f",
        f"set -g _shardwright_names '(for each in {DEFAULT_DIRECTORY}/pids/*.json; basename $each .json; end)'",
    ]
    helps = {
        action.dest: action.help
        for each in parser._actions
        if isinstance(each, argparse._SubParsersAction)
        for action in each._choices_actions
    }
    for name, command in commands(parser).items():
        lines.append(f"complete -c shardwright -n __fish_use_subcommand -a {name} -d {_quoted(helps.get(name) or '')}")
        condition = f'-n "__fish_seen_subcommand_from {name}"'
        choices = dict(_flags_with_choices(command))
        for action in _visible(command):
            for flag in action.option_strings:
                kind = f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}"
                values = f" -xa {_quoted(' '.join(choices[flag]))}" if flag in choices else ""
                values = values or ("" if action.nargs == 0 else " -rF")
                lines.append(f"complete -c shardwright {condition} {kind}{values} -d {_quoted(action.help or '')}")
        words = _positional_words(command)
        if words:
            lines.append(f"complete -c shardwright {condition} -a {_quoted(' '.join(words))}")
        if _takes_name(command):
            lines.append(f"complete -c shardwright {condition} -a $_shardwright_names")
    return "\n".join(lines) + "\n"


def _visible(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Return the options of a command and its actions; of options with the same name, only the first."""
    found: dict[str, argparse.Action] = {}
    for each in (parser, *commands(parser).values()):
        for action in each._actions:
            if action.option_strings and action.help != argparse.SUPPRESS:
                found.setdefault(action.option_strings[0], action)
    return iter(found.values())


def _flags(parser: argparse.ArgumentParser) -> list[str]:
    return [flag for action in _visible(parser) for flag in action.option_strings]


def _flags_with_choices(parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    for action in _visible(parser):
        if action.choices is not None:
            for flag in action.option_strings:
                yield flag, [str(each) for each in action.choices]


def _positional_words(parser: argparse.ArgumentParser) -> list[str]:
    positional = (action for action in parser._actions if not action.option_strings and action.choices is not None)
    return [str(each) for action in positional for each in action.choices or ()]


def _takes_name(parser: argparse.ArgumentParser) -> bool:
    return any(action.dest == _TAKES_NAME and not action.option_strings for action in parser._actions)


def _quoted(text: str) -> str:
    return "'" + text.replace("%%", "%").replace("\\", "\\\\").replace("'", "\\'") + "'"
