"""The command line options for limits: of time, of unread replies, and of clients that have not logged in."""

import argparse

from shardwright.daemon.option_values import argument, parse_count, parse_seconds
from shardwright.wire.transport.newcomers import NewcomerLimits
from shardwright.wire.transport.timeouts import TIMEOUTS
from shardwright.wire.transport.unread_total import UnreadBounds


def add_timeout_options(parser: argparse.ArgumentParser) -> None:
    """Add the limits of `wire.transport.timeouts`, and the one for shutdown."""
    parser.add_argument(
        "--shutdown-seconds",
        type=argument(parse_seconds),
        metavar="SECONDS",
        help="how long operations may continue after the signal to shut down (default: 15 for a router, else 5)",
    )
    parser.add_argument(
        "--hello-seconds",
        type=argument(parse_seconds),
        default=TIMEOUTS.hello_seconds,
        metavar="SECONDS",
        help="how long a host may be silent before it is considered down (default: %(default)g)",
    )
    parser.add_argument(
        "--selection-seconds",
        type=argument(parse_seconds),
        default=TIMEOUTS.selection_seconds,
        metavar="SECONDS",
        help="how long operations wait for a suitable replica set member (default: %(default)g)",
    )


def use_timeouts(parsed: argparse.Namespace) -> None:
    """Apply the limits in the options to this process."""
    TIMEOUTS.hello_seconds, TIMEOUTS.selection_seconds = parsed.hello_seconds, parsed.selection_seconds


def add_unread_options(parser: argparse.ArgumentParser) -> None:
    """Add the limits of `wire.transport.unread`."""
    default = UnreadBounds()
    parser.add_argument(
        "--unread-reply-mb",
        type=argument(parse_count),
        default=default.total_bytes >> 20,
        metavar="MB",
        help="memory for replies that clients have not read (default: %(default)s)",
    )
    parser.add_argument(
        "--unread-reply-mb-per-client",
        type=argument(parse_count),
        default=default.client_bytes >> 20,
        metavar="MB",
        help="the same for one client that reads nothing at all (default: %(default)s)",
    )
    parser.add_argument(
        "--unread-reply-seconds",
        type=argument(parse_count),
        default=int(default.patience_seconds),
        metavar="SECONDS",
        help="how long such a client may read nothing (default: %(default)s)",
    )


def unread_bounds(parsed: argparse.Namespace) -> UnreadBounds:
    """The limits in the options."""
    return UnreadBounds(
        parsed.unread_reply_mb << 20, parsed.unread_reply_mb_per_client << 20, float(parsed.unread_reply_seconds)
    )


def add_newcomer_options(parser: argparse.ArgumentParser) -> None:
    """Add the limits of `wire.transport.newcomers`."""
    default = NewcomerLimits()
    parser.add_argument(
        "--log-in-seconds",
        type=argument(parse_seconds),
        default=default.log_in_seconds,
        metavar="SECONDS",
        help="with a key file: how long a client may take for its first request, and to log in (default: %(default)g)",
    )
    parser.add_argument(
        "--idle-seconds-before-log-in",
        type=argument(parse_seconds),
        default=default.idle_seconds,
        metavar="SECONDS",
        help="with a key file: how long a client that does not log in, such as a monitor of a driver, may be silent "
        "(default: %(default)g)",
    )
    parser.add_argument(
        "--message-bytes-before-log-in",
        type=argument(parse_count),
        default=default.message_bytes,
        metavar="BYTES",
        help="with a key file: the longest message of a client that has not logged in (default: %(default)s)",
    )
    parser.add_argument(
        "--failed-log-ins",
        type=argument(parse_count),
        default=default.failures,
        metavar="N",
        help="with a key file: a connection is closed with its Nth failed log-in (default: %(default)s)",
    )


def newcomer_limits(parsed: argparse.Namespace) -> NewcomerLimits:
    """The limits in the options."""
    return NewcomerLimits(
        parsed.log_in_seconds,
        parsed.idle_seconds_before_log_in,
        parsed.message_bytes_before_log_in,
        parsed.failed_log_ins,
    )
