"""``config.settings``: settings of the balancer and of chunk sizes, absent until someone changes them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.sharding.document_fields import optional
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError

CHUNK_SIZE_MB_DEFAULT: Final = 128
CHUNK_SIZE_MB_MIN: Final = 1
CHUNK_SIZE_MB_MAX: Final = 1024

BALANCER_ID: Final = "balancer"
CHUNK_SIZE_ID: Final = "chunksize"
AUTO_SPLIT_ID: Final = "autosplit"
READ_WRITE_CONCERN_DEFAULTS_ID: Final = "ReadWriteConcernDefaults"


@dataclass(frozen=True, slots=True)
class BalancerSettings:
    """The document ``balancer``.

    Args:
        mode: ``full``, ``autoSplitOnly`` or ``off``.
        active_window: ``{start: "HH:MM", stop: "HH:MM"}`` outside of which nothing is balanced.
        secondary_throttle: a boolean or a write concern for copied documents.
        wait_for_delete: whether a migration waits until the donor has deleted what moved.
        attempt_to_balance_jumbo_chunks: whether chunks above the size limit may move.
    """

    mode: str = "full"
    active_window: Mapping[str, str] | None = None
    secondary_throttle: bool | Mapping[str, Any] | None = None
    wait_for_delete: bool = False
    attempt_to_balance_jumbo_chunks: bool = False

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> "BalancerSettings":
        """Read the document, or the defaults where there is none.

        Raises:
            CommandError: BadValue, an unknown mode; TypeMismatch.
        """
        if document is None:
            return cls()
        mode = optional(document, "mode", str) or ("off" if optional(document, "stopped", bool) else "full")
        if mode not in ("full", "autoSplitOnly", "off"):
            raise CommandError(ErrorCode.BadValue, "Invalid balancer mode")
        return cls(
            mode=mode,
            active_window=optional(document, "activeWindow", Mapping),
            secondary_throttle=document.get("_secondaryThrottle"),
            wait_for_delete=optional(document, "_waitForDelete", bool) or False,
            attempt_to_balance_jumbo_chunks=optional(document, "attemptToBalanceJumboChunks", bool) or False,
        )

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB writes it; ``stopped`` is for old readers."""
        document: dict[str, Any] = {"_id": BALANCER_ID, "mode": self.mode, "stopped": self.mode == "off"}
        if self.active_window is not None:
            document["activeWindow"] = dict(self.active_window)
        if self.secondary_throttle is not None:
            document["_secondaryThrottle"] = self.secondary_throttle
        if self.wait_for_delete:
            document["_waitForDelete"] = True
        if self.attempt_to_balance_jumbo_chunks:
            document["attemptToBalanceJumboChunks"] = True
        return document


@dataclass(frozen=True, slots=True)
class ChunkSizeSettings:
    """The document ``chunksize``: the largest range of data that is moved at once."""

    value_mb: int = CHUNK_SIZE_MB_DEFAULT

    @classmethod
    def from_document(cls, document: Mapping[str, Any] | None) -> "ChunkSizeSettings":
        """Read the document, or the default where there is none.

        Raises:
            CommandError: BadValue, outside 1 to 1024 MB.
        """
        if document is None:
            return cls()
        value = document.get("value")
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise CommandError(ErrorCode.TypeMismatch, 'Expected field "value" to be a number')
        if not CHUNK_SIZE_MB_MIN <= value <= CHUNK_SIZE_MB_MAX:
            raise CommandError(ErrorCode.BadValue, f"{value} is not a valid value for chunksize")
        return cls(int(value))

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB writes it."""
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
        """Read the document, or the default where there is none.

        Raises:
            CommandError: TypeMismatch.
        """
        return cls() if document is None else cls(optional(document, "enabled", bool) is not False)

    def to_document(self) -> dict[str, Any]:
        """The document as MongoDB writes it."""
        return {"_id": AUTO_SPLIT_ID, "enabled": self.enabled}
