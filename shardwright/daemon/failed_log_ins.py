"""Delays against password guessing: after some failures, each further proof is answered later.

Failures are counted by user name and client address. So guesses from elsewhere, or of other users' passwords from the
same machine, delay no other user. A delayed authentication with the right password succeeds, so no client can lock a
user out.
"""

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from shardwright.daemon.user_names import UserName

_FREE: Final = 5
_FIRST_DELAY_SECONDS: Final = 0.1
_DELAY_SECONDS_MAX: Final = 2.0
_REMEMBERED_SECONDS: Final = 60.0
_REMEMBERED_MAX: Final = 10_000

_Key = tuple[UserName, str | None]


@dataclass(slots=True)
class _Failures:
    count: int
    latest: float


class FailedLogIns:
    """The failures of the last minute by a clock in seconds, at most `_REMEMBERED_MAX`."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._failures: OrderedDict[_Key, _Failures] = OrderedDict()

    def delay_seconds(self, user: UserName, address: str | None) -> float:
        """Return the delay before the next proof is answered, whether right or wrong.

        Args:
            user: the user of the log-in, which need not exist.
            address: the client's address; None for a UNIX socket.
        """
        failures = self._failures.get((user, address))
        if failures is None or self._clock() - failures.latest > _REMEMBERED_SECONDS or failures.count < _FREE:
            return 0.0
        return float(min(_DELAY_SECONDS_MAX, _FIRST_DELAY_SECONDS * 2 ** min(failures.count - _FREE, 10)))

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
