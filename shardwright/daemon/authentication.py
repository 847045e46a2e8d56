"""Authentication common to all daemons: key files, names in certificates, and delays after failures.

A key file authenticates the processes of a cluster to each other; its rules are mongod's. It has one key, or a YAML
list of at most two, so that keys can be changed one process at a time.

A client certificate names a user or a member of the cluster (MONGODB-X509). A certificate with this server's own
organization belongs to a member, and never to a user.

Against password guessing, replies are delayed after some failures, which are counted by user name and client address.
So guesses from elsewhere, or of other users' passwords from the same machine, do not delay a user. A delayed
authentication with the right password succeeds, so no client can lock a user out.
"""

import os
import re
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from stat import S_IRWXG, S_IRWXO
from time import monotonic
from typing import Final

from shardwright.daemon.users import SYSTEM, UserName
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.tls import subject_text
from shardwright.wire.transport.client_connection import ClientConnection
from shardwright.wire.transport.cluster_auth import EXTERNAL_DATABASE, WITH_CERTIFICATE, ClusterAuth

KEY_CHARACTERS_MIN: Final = 6
KEY_CHARACTERS_MAX: Final = 1024
KEYS_MAX: Final = 2
_FILE_BYTES_MAX: Final = 1 << 20

_KEY_PATTERN: Final = re.compile(r"[A-Za-z0-9+/=]*")
_LIST_ITEM: Final = re.compile(r"^-[ \t]+", re.MULTILINE)
_QUOTES: Final = ("'", '"')

_FREE_FAILURES: Final = 5
_FIRST_DELAY_SECONDS: Final = 0.1
_DELAY_SECONDS_MAX: Final = 2.0
_REMEMBERED_SECONDS: Final = 60.0
_REMEMBERED_MAX: Final = 10_000

_Origin = tuple[UserName, str | None]


def read_key_file(path: Path) -> tuple[str, ...]:
    """Return the keys, the one to log in with first.

    Raises:
        OSError: the file cannot be read.
        ValueError: a key is invalid, or others than the owner may read the file; the message is for the operator.
    """
    descriptor = os.open(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & (S_IRWXG | S_IRWXO):
            raise ValueError(f"permissions on {path} are too open")
        content = file.read(_FILE_BYTES_MAX)
    try:
        text = content.decode("ascii")
    except UnicodeDecodeError:
        raise ValueError(f"invalid char in key file {path}") from None
    keys = tuple(_checked_key(path, each) for each in _items(text))
    if len(keys) > KEYS_MAX:
        raise ValueError(f"Only two keys are supported in the security key file {path}")
    return keys


def _items(text: str) -> list[str]:
    """Return the items of a list, or the whole text as the only one."""
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    if not _LIST_ITEM.match(lines.lstrip()):
        return [lines]
    return _LIST_ITEM.split(lines.lstrip())[1:]


def _checked_key(path: Path, item: str) -> str:
    """Return a key without its white space, which is ignored."""
    key = "".join(item.split())
    if len(key) > 1 and key[0] == key[-1] and key[0] in _QUOTES:
        key = key[1:-1]
    if not _KEY_PATTERN.fullmatch(key):
        raise ValueError(f"invalid char in key file {path}")
    if not KEY_CHARACTERS_MIN <= len(key) <= KEY_CHARACTERS_MAX:
        raise ValueError(
            f"security key in {path} has length {len(key)}, must be between {KEY_CHARACTERS_MIN} and "
            f"{KEY_CHARACTERS_MAX} chars"
        )
    return key


def check_mechanism(mechanism: str) -> None:
    """Refuse mechanisms of ``authenticate`` other than by certificate (BadValue or MechanismUnavailable)."""
    if mechanism.startswith("SCRAM-SHA-"):
        raise CommandError(ErrorCode.BadValue, f"Unsupported mechanism: {mechanism}")
    if mechanism != WITH_CERTIFICATE:
        raise CommandError(
            ErrorCode.MechanismUnavailable, f"Received authentication for mechanism {mechanism} which is not enabled"
        )


def name_in_certificate(
    cluster_auth: ClusterAuth, client: ClientConnection, db: str, user: str | None
) -> tuple[UserName, UserName]:
    """Return the name in a client's certificate and the identity to log in: the user, or the cluster's internal user.

    Args:
        db: the user's database according to the client.
        user: the user's name according to the client, if it sends any.

    Raises:
        CommandError: ProtocolError, the database is another; AuthenticationFailed, anything else is wrong.
    """
    subject = client.certificate_subject
    if not subject:
        raise _authentication_failed("No verified subject name available from client")
    if db != EXTERNAL_DATABASE:
        raise CommandError(ErrorCode.ProtocolError, "X.509 authentication must always use the $external database.")
    name = UserName(subject_text(subject), EXTERNAL_DATABASE)
    if user is not None and user != name.user:
        raise _authentication_failed("There is no x.509 client certificate matching the user.")
    if not cluster_auth.is_member(subject):
        return name, name
    if not cluster_auth.accepts_certificate:
        raise _authentication_failed(
            "The provided certificate can only be used for cluster authentication, not client authentication. The "
            "current configuration does not allow x.509 cluster authentication, check the --clusterAuthMode flag"
        )
    return name, SYSTEM


def _authentication_failed(message: str) -> CommandError:
    return CommandError(ErrorCode.AuthenticationFailed, message)


@dataclass(slots=True)
class _Failures:
    count: int
    latest: float


class FailedLogIns:
    """The failures of the last minute by a clock in seconds, at most `_REMEMBERED_MAX`."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[_Origin, _Failures] = OrderedDict()

    def delay_seconds(self, user: UserName, address: str | None) -> float:
        """Return the delay before the next proof is answered, whether right or wrong.

        Args:
            user: the user of the log-in, which need not exist.
            address: the client's address; None for a UNIX socket.
        """
        failures = self._failures.get((user, address))
        if failures is None or self._clock() - failures.latest > _REMEMBERED_SECONDS or failures.count < _FREE_FAILURES:
            return 0.0
        return float(min(_DELAY_SECONDS_MAX, _FIRST_DELAY_SECONDS * 2 ** min(failures.count - _FREE_FAILURES, 10)))

    def note(self, user: UserName, address: str | None) -> None:
        """Record a failed log-in."""
        now = self._clock()
        failures = self._failures.pop((user, address), None)
        if failures is None or now - failures.latest > _REMEMBERED_SECONDS:
            failures = _Failures(0, now)
        failures.count, failures.latest = failures.count + 1, now
        self._failures[user, address] = failures
        if len(self._failures) > _REMEMBERED_MAX:
            self._failures.popitem(last=False)

    def forget(self, user: UserName, address: str | None) -> None:
        """Remove the failures after a successful log-in."""
        self._failures.pop((user, address), None)
