"""Keys of cluster times: signing, and checking signatures that clients gossip (``TimeProofService``).

The primary of the config servers creates the keys. There are always two that have not expired, the later one for when
the first expires (``KeysRotationIntervalSec``, 90 days). All other servers cache them.

A signature is the HMAC-SHA1 of a time whose lowest 16 bits are set. So one hash serves 65,536 increments, and servers
cache hashes: signing a time is nearly always a dictionary look-up.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.sharding.timestamps import pack_timestamp
from shardwright.wire.rawbson import encode_elements

KEYS_DB: Final = "admin"
KEYS_COLLECTION: Final = "system.keys"

PURPOSE: Final = "HMAC"
"""``purpose`` of the keys that sign times; it is part of error messages too."""

_REFRESH_SECONDS_MAX: Final = 600


@dataclass(frozen=True, slots=True)
class SigningKey:
    """One key.

    Attributes:
        secret: the 20 bytes shared by all servers.
        expires_at: the first cluster time, packed, that it does not sign.
    """

    id: int
    secret: bytes
    expires_at: int

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> "SigningKey":
        """Read the key in a document of ``admin.system.keys``."""
        return cls(int(document["_id"]), bytes(document["key"]), pack_timestamp(document["expiresAt"]))


class SigningKeys:
    """An immutable set of keys."""

    __slots__ = ("_by_expiry",)

    def __init__(self, keys: Iterable[SigningKey] = ()) -> None:
        self._by_expiry = sorted(keys, key=lambda key: key.expires_at)

    def __bool__(self) -> bool:
        """Whether there are any."""
        return bool(self._by_expiry)

    @property
    def expire_at_seconds(self) -> int:
        """Time at which the last of them expires, in seconds since 1970; 0 without keys."""
        return self._by_expiry[-1].expires_at >> 32 if self._by_expiry else 0

    def for_signing(self, time: int) -> SigningKey | None:
        """Return the key that signs a packed cluster time: the one that expires first after it."""
        return next((key for key in self._by_expiry if key.expires_at > time), None)

    def find(self, key_id: int, time: int) -> SigningKey | None:
        """Return a key by its number, unless it expired before a packed cluster time."""
        return next((key for key in self._by_expiry if key.id == key_id and key.expires_at > time), None)


def refresh_delay_seconds(keys: SigningKeys, now: int) -> int:
    """Return the seconds until these keys must be read again, at a time in seconds since 1970.

    A new key is created long before it signs, so the reads usually find it in time. Unknown keys are looked up at once.
    """
    return max(1, min(_REFRESH_SECONDS_MAX, (keys.expire_at_seconds - now) // 2))


HASH_BYTES: Final = 20

_RANGE_MASK: Final = 0xFFFF

_PROOFS_MAX: Final = 256
"""Number of cached proofs. Times of one moment come from few ranges, because the shards' clocks differ by little."""

_pack_uint64: Final = Struct("<Q").pack


def signature_element(proof: bytes, key_id: int) -> bytes:
    """Build the raw element ``signature`` of a ``$clusterTime``; its length is always the same."""
    return encode_elements({"signature": {"hash": Binary(proof), "keyId": Int64(key_id)}})


DUMMY_SIGNATURE_ELEMENT: Final = signature_element(bytes(HASH_BYTES), 0)
"""Placeholder for a signature: between servers, and in replies to clients while no keys are known."""


def proof_of(key: SigningKey, time: int) -> bytes:
    """Compute the hash that proves that a server with the key has issued a packed time, or one in the same range."""
    return hmac.digest(key.secret, _pack_uint64(time | _RANGE_MASK), hashlib.sha1)


def is_proven(key: SigningKey, time: int, proof: bytes) -> bool:
    """Whether a hash signs the time."""
    return hmac.compare_digest(proof_of(key, time), proof)


class TimeSigner:
    """Signer of times with its newest keys.

    If ``withholds_unsigned``, clients get no times while there is no key, as under access control: a server would
    refuse such a time from a user.
    """

    __slots__ = ("_elements", "_keys", "withholds_unsigned")

    def __init__(self, keys: SigningKeys | None = None, *, withholds_unsigned: bool = False) -> None:
        self._keys = keys or SigningKeys()
        self.withholds_unsigned = withholds_unsigned
        self._elements: dict[int, bytes] = {}

    @property
    def keys(self) -> SigningKeys:
        """The keys that sign; setting them drops all proofs."""
        return self._keys

    @keys.setter
    def keys(self, keys: SigningKeys) -> None:
        self._keys = keys
        self._elements = {}

    def element(self, time: int) -> bytes:
        """Return the ``signature`` of a packed cluster time; the dummy if there is no key for it."""
        last = time | _RANGE_MASK
        return self._elements.get(last) or self._make(last)

    def _make(self, last: int) -> bytes:
        # All times of a range have the key of its last, so that they all have the same signature.
        key = self._keys.for_signing(last)
        if key is None:
            return DUMMY_SIGNATURE_ELEMENT
        if len(self._elements) >= _PROOFS_MAX:
            self._elements = {}
        element = self._elements[last] = signature_element(proof_of(key, last), key.id)
        return element
