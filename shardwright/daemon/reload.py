"""The changed configuration of a running daemon: options applied at once, and options that wait for a restart."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from shardwright.daemon.log_formats import REDACTION
from shardwright.daemon.logs import set_level
from shardwright.wire.transport.reply_memory import UNREAD_REPLIES
from shardwright.wire.transport.reservations import UnreadBounds
from shardwright.wire.transport.timeouts import TIMEOUTS
from shardwright.wire.transport.unauthenticated_clients import NewcomerLimits


def use_timeouts(parsed: argparse.Namespace) -> None:
    """Apply the limits of `wire.transport.timeouts` to this process."""
    TIMEOUTS.hello_seconds, TIMEOUTS.selection_seconds = parsed.hello_seconds, parsed.selection_seconds


def unread_bounds(parsed: argparse.Namespace) -> UnreadBounds:
    """Return the limits of `wire.transport.reply_memory`."""
    return UnreadBounds(
        parsed.unread_reply_mb << 20, parsed.unread_reply_mb_per_client << 20, float(parsed.unread_reply_seconds)
    )


def newcomer_limits(parsed: argparse.Namespace) -> NewcomerLimits:
    """Return the limits of `wire.transport.unauthenticated_clients`."""
    return NewcomerLimits(
        parsed.log_in_seconds,
        parsed.idle_seconds_before_log_in,
        parsed.message_bytes_before_log_in,
        parsed.failed_log_ins,
    )


@dataclass(frozen=True, slots=True)
class Reread:
    """A configuration that was read again.

    Attributes:
        changed: the attributes of changed options that can be applied at run time.
        waiting: the names of changed options that only a restart applies.
    """

    values: argparse.Namespace
    changed: frozenset[str]
    waiting: tuple[str, ...] = ()


ReadAgain = Callable[[], Reread]
"""Reads the configuration again; raises OSError or ValueError, with a message for the operator, if that fails."""


def apply_to_process(reread: Reread) -> None:
    """Apply the options that belong to the process as a whole."""
    values, changed = reread.values, reread.changed
    if "log_level" in changed:
        set_level(values.log_level)
    if "redact_client_log_data" in changed:
        REDACTION.is_on = values.redact_client_log_data
    use_timeouts(values)
    UNREAD_REPLIES.bounds = unread_bounds(values)
