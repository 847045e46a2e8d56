"""The keys that sign cluster times: the documents of ``admin.system.keys`` on the config servers.

The primary of the config servers makes them: there are always two that have not expired, the later one for when the
first expires (``KeysRotationIntervalSec``, 90 days). Everyone else caches them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from shardwright.sharding.timestamps import pack_timestamp

KEYS_DB: Final = "admin"
KEYS_COLLECTION: Final = "system.keys"

PURPOSE: Final = "HMAC"
"""The ``purpose`` of the keys that sign times; it is part of error messages too."""

_REFRESH_SECONDS_MAX: Final = 600


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key.

    Attributes:
        id: its number, never 0.
        secret: the 20 bytes shared by all servers.
        expires_at: the cluster time, packed, that it no longer signs.
    """

    id: int
    secret: bytes
    expires_at: int

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "SigningKey":
        """The key in a document of ``admin.system.keys``."""
        return cls(int(document["_id"]), bytes(document["key"]), pack_timestamp(document["expiresAt"]))


class SigningKeys:
    """An immutable set of keys.

    Args:
        keys: in any order.
    """

    __slots__ = ("_by_expiry",)

    def __init__(self, keys: Iterable[SigningKey] = ()) -> None:
        self._by_expiry = sorted(keys, key=lambda key: key.expires_at)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._by_expiry)

    @property
    def expire_at_seconds(self) -> int:
        """When the last of them expires, in seconds since 1970; 0 without keys."""
        return self._by_expiry[-1].expires_at >> 32 if self._by_expiry else 0

    def for_signing(self, time: int) -> SigningKey | None:
        """The key that signs a packed cluster time: the one that expires first after it."""
        return next((key for key in self._by_expiry if key.expires_at > time), None)

    def find(self, key_id: int, time: int) -> SigningKey | None:
        """A key by its number, unless it expired before a packed cluster time."""
        return next((key for key in self._by_expiry if key.id == key_id and key.expires_at > time), None)


def refresh_delay_seconds(keys: SigningKeys, now: int) -> int:
    """How long these keys may be used before they are read again.

    A new key is made long before it signs, so it is usually known by then; unknown ones are looked up at once.

    Args:
        keys: as they were last read.
        now: in seconds since 1970.
    """
    return max(1, min(_REFRESH_SECONDS_MAX, (keys.expire_at_seconds - now) // 2))
