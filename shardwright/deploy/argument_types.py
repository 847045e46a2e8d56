"""Types of the command's option values.

Each function raises `argparse.ArgumentTypeError`, with a message for the user, if the text is not valid.
"""

import argparse
import math
import signal

from shardwright.deploy.daemon_options import parse_option
from shardwright.deploy.parameters import ORPHAN_CLEANUP_DELAY, parse_parameter


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
