"""Additional options for a cluster's daemons, such as limits and timeouts: ``--router-option NAME=VALUE``.

The launcher has a list of the daemon options that it sets itself, and refuses those here. Any other option is checked
by the daemon's own command line parser, before anything is started or saved.
"""

import subprocess
import sys
from collections.abc import Mapping
from typing import Final

from shardwright.deploy.errors import DeployError
from shardwright.deploy.topology import Role

DaemonOptions = Mapping[Role, Mapping[str, str]]
"""Options by role, and by their names without dashes. An empty value removes the option."""

DAEMONS: Final = (Role.ROUTER, Role.SHARDD, Role.CONFIGD)

_GIVEN_BY_LAUNCHER: Final = frozenset(
    {
        *("bind-ip", "port", "metrics-bind-ip", "metrics-port", "unix-socket-directory", "log-file", "log-rotate"),
        *("configdb", "workers", "mongod-socket", "mongod-address", "set-parameter", "key-file"),
        *("tls-mode", "tls-certificate-key-file", "tls-cluster-file", "tls-ca-file", "mongod-tls"),
        "cluster-auth-mode",
    }
)

_HELP_SECONDS_MAX: Final = 60.0


def parse_option(text: str) -> tuple[str, str]:
    """Parse name and value from ``NAME=VALUE``, which may begin with dashes.

    Raises:
        ValueError: it is not of that form, or the launcher sets this option itself.
    """
    name, equals, value = text.removeprefix("--").partition("=")
    if not equals or not name.replace("-", "").isalnum() or name.startswith("-"):
        raise ValueError(f"{text!r} is not of the form NAME=VALUE")
    if name in _GIVEN_BY_LAUNCHER:
        raise ValueError(f"{name} is an option that `up` sets itself")
    return name, value


def combined(before: DaemonOptions, changes: DaemonOptions) -> dict[Role, dict[str, str]]:
    """Merge changes into a cluster's options."""
    merged = {role: {**before.get(role, {}), **changes.get(role, {})} for role in DAEMONS}
    return {role: {name: value for name, value in options.items() if value} for role, options in merged.items()}


def check_options(options: DaemonOptions) -> None:
    """Check each daemon's options with its own command line parser."""
    for role, of_role in options.items():
        given = {name: value for name, value in of_role.items() if value}
        if given:
            _check_options_of(role, given)


def option_words(options: Mapping[str, str]) -> list[str]:
    """Return the options as words of a daemon's command line."""
    return [f"--{name}={value}" for name, value in options.items()]


def _check_options_of(role: Role, options: Mapping[str, str]) -> None:
    command = [sys.executable, "-P", "-m", f"shardwright.{role}.main", *option_words(options), "--help"]
    try:
        completed = subprocess.run(command, capture_output=True, text=True, timeout=_HELP_SECONDS_MAX, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DeployError(f"cannot check the options of the {role}: {error}") from error
    if completed.returncode:
        reason = (completed.stderr.splitlines() or ["no reason given"])[-1].partition("error: ")
        raise DeployError(f"--{role}-option: {reason[2] or reason[0]}")
    known = set(completed.stdout.replace(",", " ").split())
    for name in options:
        if f"--{name}" not in known:
            raise DeployError(f"--{role}-option: the {role} has no option --{name}")
