"""``config.settings``: settings of the balancer and of chunk sizes, absent until a user changes them."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, time
from typing import Any, Final

from shardwright.sharding.document_fields import optional
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import is_string

CHUNK_SIZE_MB_DEFAULT: Final = 128
CHUNK_SIZE_MB_MIN: Final = 1
CHUNK_SIZE_MB_MAX: Final = 1024

BALANCER_ID: Final = "balancer"
CHUNK_SIZE_ID: Final = "chunksize"
AUTO_SPLIT_ID: Final = "autosplit"

POLICY_DEFAULT: Final = "dataSize"
POLICIES: Final = (POLICY_DEFAULT, "chunkCount")


_TIME_OF_DAY: Final = re.compile(r"(\d{1,2}):(\d{2})")


@dataclass(frozen=True, slots=True)
class ActiveWindow:
    """Time of day, on the server's clock, in which rounds may start; both ends are included."""

    start: time
    stop: time

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "ActiveWindow":
        """Read ``{start: "HH:MM", stop: "HH:MM"}``; raise BadValue unless these are two different times of a day."""
        start, stop = (_time_of_day(document.get(name)) for name in ("start", "stop"))
        if start is None or stop is None or start == stop:
            raise CommandError(
                ErrorCode.BadValue,
                f"expected start and stop of the balancer's active window as two different HH:MM, got {dict(document)}",
            )
        return cls(start, stop)

    def includes(self, now: datetime) -> bool:
        """Whether a time is in the window, which may extend past midnight."""
        minute = time(now.hour, now.minute)
        if self.start <= self.stop:
            return self.start <= minute <= self.stop
        return minute >= self.start or minute <= self.stop


def _time_of_day(value: object) -> time | None:
    found = _TIME_OF_DAY.fullmatch(value) if is_string(value) else None
    if found is None:
        return None
    hour, minute = int(found[1]), int(found[2])
    return time(hour, minute) if hour < 24 and minute < 60 else None


@dataclass(frozen=True, slots=True)
class BalancerSettings:
    """The document ``balancer``.

    Args:
        active_window: ``{start: "HH:MM", stop: "HH:MM"}``; nothing is balanced outside of it.
        secondary_throttle: a boolean or a write concern for copied documents.
        wait_for_delete: whether a migration waits until the donor has deleted the orphans.
        attempt_to_balance_jumbo_chunks: whether chunks above the size limit may move.
        policy: the quantity to even out, ``dataSize`` or ``chunkCount``; an addition of ours.
    """

    mode: str = "full"
    active_window: Mapping[str, str] | None = None
    secondary_throttle: bool | Mapping[str, Any] | None = None
    wait_for_delete: bool = False
    attempt_to_balance_jumbo_chunks: bool = False
    policy: str = POLICY_DEFAULT

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> "BalancerSettings":
        """Read the document; return the defaults if there is none.

        Raises BadValue for an unknown mode or policy, or an impossible window.
        """
        if document is None:
            return cls()
        mode = optional(document, "mode", str) or "full"
        if mode not in ("full", "autoSplitOnly", "off"):
            raise CommandError(ErrorCode.BadValue, "Invalid balancer mode")
        policy = optional(document, "balancerPolicy", str) or POLICY_DEFAULT
        if policy not in POLICIES:
            raise CommandError(ErrorCode.BadValue, f"Invalid balancer policy, expected one of {', '.join(POLICIES)}")
        window = optional(document, "activeWindow", Mapping)
        if window is not None:
            ActiveWindow.from_document(window)
        return cls(
            mode="off" if optional(document, "stopped", bool) else mode,
            active_window=window,
            secondary_throttle=_secondary_throttle(document),
            wait_for_delete=optional(document, "_waitForDelete", bool) or False,
            attempt_to_balance_jumbo_chunks=optional(document, "attemptToBalanceJumboChunks", bool) or False,
            policy=policy,
        )

    def may_balance(self, now: datetime) -> bool:
        """Whether a round may start at a time on the server's clock."""
        if self.mode != "full":
            return False
        return self.active_window is None or ActiveWindow.from_document(self.active_window).includes(now)

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it; ``stopped`` is for old readers."""
        document: dict[str, Any] = {"_id": BALANCER_ID, "mode": self.mode, "stopped": self.mode == "off"}
        if self.active_window is not None:
            document["activeWindow"] = dict(self.active_window)
        if self.secondary_throttle is not None:
            document["_secondaryThrottle"] = self.secondary_throttle
        if self.wait_for_delete:
            document["_waitForDelete"] = True
        if self.attempt_to_balance_jumbo_chunks:
            document["attemptToBalanceJumboChunks"] = True
        if self.policy != POLICY_DEFAULT:
            document["balancerPolicy"] = self.policy
        return document


def _secondary_throttle(settings: Mapping[str, Any]) -> bool | Mapping[str, Any] | None:
    """Read the field ``_secondaryThrottle``; as in MongoDB, a number counts as a boolean."""
    value = optional(settings, "_secondaryThrottle", bool, int, float, Mapping)
    return bool(value) if isinstance(value, int | float) else value


@dataclass(frozen=True, slots=True)
class ChunkSizeSettings:
    """The document ``chunksize``: the largest range of data that is moved at once."""

    value_mb: int = CHUNK_SIZE_MB_DEFAULT

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> "ChunkSizeSettings":
        """Read the document; return the default if there is none. Raises BadValue outside 1 to 1024 MB."""
        if document is None:
            return cls()
        value = document.get("value")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CommandError(ErrorCode.TypeMismatch, 'Expected field "value" to be a number')
        if not CHUNK_SIZE_MB_MIN <= value <= CHUNK_SIZE_MB_MAX:
            raise CommandError(ErrorCode.BadValue, f"{value} is not a valid value for chunksize")
        return cls(int(value))

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        return {"_id": CHUNK_SIZE_ID, "value": self.value_mb}

    @property
    def value_bytes(self) -> int:
        """The size in bytes."""
        return self.value_mb << 20


@dataclass(frozen=True, slots=True)
class AutoSplitSettings:
    """The document ``autosplit``, without effect in 6.0 but still switched together with the balancer."""

    enabled: bool = True

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> "AutoSplitSettings":
        """Read the document; return the default if there is none."""
        return cls() if document is None else cls(optional(document, "enabled", bool) is not False)

    def to_document(self) -> dict[str, Any]:
        """Build the document as MongoDB writes it."""
        return {"_id": AUTO_SPLIT_ID, "enabled": self.enabled}
