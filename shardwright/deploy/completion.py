"""Shell completion scripts, generated from the parser of the command line.

The scripts are static, so that a shell does not start an interpreter at every TAB. Process names come from the pid
files in the directory of the cluster.
"""

import argparse
from collections.abc import Iterator
from typing import Final

from shardwright.deploy.command_parser import commands
from shardwright.deploy.layout import DEFAULT_DIRECTORY

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
