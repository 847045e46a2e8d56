"""The crash rate above which a supervisor stops restarting workers."""

from collections import deque
from typing import Final

CRASHES_MAX: Final = 10
WINDOW_SECONDS: Final = 60.0


class CrashRate:
    """The crashes of the last minute, of all workers of a router.

    A router lives for years, and each worker may crash now and then. Many crashes in a short time, however, indicate a
    fault in the machine or the configuration.
    """

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def note(self, now: float) -> None:
        """Record the crash of a worker.

        Args:
            now: in seconds, on a monotonic clock.
        """
        self._times.append(now)
        while self._times[0] <= now - WINDOW_SECONDS:
            self._times.popleft()

    @property
    def is_too_high(self) -> bool:
        """Whether there were more than `CRASHES_MAX` crashes within `WINDOW_SECONDS`, up to the latest one."""
        return len(self._times) > CRASHES_MAX
