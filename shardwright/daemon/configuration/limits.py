"""Options for limits: connections, times, unread replies, and clients that have not logged in."""

from typing import Final

from shardwright.daemon.configuration.option import COUNT, SECONDS, Option, ValueType
from shardwright.wire.transport.accepting import HANDSHAKES_MAX, HANDSHAKES_MIN
from shardwright.wire.transport.reservations import UnreadBounds
from shardwright.wire.transport.timeouts import TIMEOUTS
from shardwright.wire.transport.unauthenticated_clients import NewcomerLimits

_UNREAD: Final = UnreadBounds()
_NEWCOMERS: Final = NewcomerLimits()


def _limit(
    name: str,
    key: str,
    value_type: ValueType,
    default: float,
    description: str,
    *,
    is_reloadable: bool = True,
) -> Option:
    return Option(
        name=name,
        path=f"shardwright.limits.{key}",
        type=value_type,
        section="Limits",
        default=f"{default:g}" if value_type is SECONDS else str(int(default)),
        is_reloadable=is_reloadable,
        help=description,
    )


LIMITS: Final = (
    Option(
        name="max-connections",
        path="net.maxIncomingConnections",
        type=COUNT,
        section="Limits",
        default_text="as many as the limit on open files allows",
        is_reloadable=True,
        help="maximum number of clients; more are refused",
    ),
    Option(
        name="handshakes-max",
        path="shardwright.limits.handshakes",
        type=COUNT,
        section="Limits",
        default_text=f"a quarter of --max-connections, from {HANDSHAKES_MIN} to {HANDSHAKES_MAX}",
        help="with TLS: how many connections may be in their handshake; the oldest makes room for a new one",
    ),
    _limit(
        "unread-reply-mb",
        "unreadReplyMB",
        COUNT,
        _UNREAD.total_bytes >> 20,
        "megabytes of memory for replies that clients have not read",
    ),
    _limit(
        "unread-reply-mb-per-client",
        "unreadReplyMBPerClient",
        COUNT,
        _UNREAD.client_bytes >> 20,
        "the same for one client that reads nothing at all",
    ),
    _limit(
        "unread-reply-seconds",
        "unreadReplySeconds",
        COUNT,
        _UNREAD.patience_seconds,
        "seconds for which such a client may read nothing",
    ),
    Option(
        name="shutdown-seconds",
        path="shardwright.limits.shutdownSeconds",
        type=SECONDS,
        section="Limits",
        default_text="15 for a router, else 5",
        is_reloadable=True,
        help="how long operations may continue after the signal to shut down",
    ),
    _limit(
        "hello-seconds",
        "helloSeconds",
        SECONDS,
        TIMEOUTS.hello_seconds,
        "how long a host may be silent before it is considered down",
    ),
    _limit(
        "selection-seconds",
        "selectionSeconds",
        SECONDS,
        TIMEOUTS.selection_seconds,
        "how long operations wait for a suitable replica set member",
    ),
    _limit(
        "log-in-seconds",
        "logInSeconds",
        SECONDS,
        _NEWCOMERS.log_in_seconds,
        "with access control: how long a client may take for its first request, and to log in",
        is_reloadable=False,
    ),
    _limit(
        "idle-seconds-before-log-in",
        "idleSecondsBeforeLogIn",
        SECONDS,
        _NEWCOMERS.idle_seconds,
        "with access control: how long a client that does not log in, such as a monitor of a driver, may be silent",
        is_reloadable=False,
    ),
    _limit(
        "message-bytes-before-log-in",
        "messageBytesBeforeLogIn",
        COUNT,
        _NEWCOMERS.message_bytes,
        "with access control: bytes of the longest message of a client that has not logged in",
        is_reloadable=False,
    ),
    _limit(
        "failed-log-ins",
        "failedLogIns",
        COUNT,
        _NEWCOMERS.failures,
        "with access control: a connection is closed with its Nth failed log-in",
        is_reloadable=False,
    ),
)
