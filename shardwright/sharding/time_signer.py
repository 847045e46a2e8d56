"""Signing cluster times, and checking the signatures of times that clients gossip (MongoDB: ``TimeProofService``).

A signature is the HMAC-SHA1 of a time whose lowest 16 bits are set. So one hash serves 65,536 increments, which lets
servers keep the hashes they have made: signing a time is nearly always a dictionary look-up.
"""

import hashlib
import hmac
from struct import Struct
from typing import Final

from bson.binary import Binary
from bson.int64 import Int64

from shardwright.sharding.signing_keys import SigningKey, SigningKeys
from shardwright.wire.rawbson import encode_elements

HASH_BYTES: Final = 20

_RANGE_MASK: Final = 0xFFFF

_PROOFS_MAX: Final = 256
"""Proofs kept. Times of one moment come from few ranges, as the shards' clocks differ by little."""

_pack_uint64: Final = Struct("<Q").pack


def signature_element(proof: bytes, key_id: int) -> bytes:
    """The raw element ``signature`` of a ``$clusterTime``; its length is always the same."""
    return encode_elements({"signature": {"hash": Binary(proof), "keyId": Int64(key_id)}})


DUMMY_SIGNATURE_ELEMENT: Final = signature_element(bytes(HASH_BYTES), 0)
"""In place of a signature: between servers, and in replies to clients while no keys are known."""


def proof_of(key: SigningKey, time: int) -> bytes:
    """The hash that proves that a server with the key has handed out a packed time, or one in the same range."""
    return hmac.digest(key.secret, _pack_uint64(time | _RANGE_MASK), hashlib.sha1)


def is_proven(key: SigningKey, time: int, proof: bytes) -> bool:
    """Whether a hash is that of the time."""
    return hmac.compare_digest(proof_of(key, time), proof)


class TimeSigner:
    """Signs times with the newest keys it was given.

    Args:
        keys: see below.
        withholds_unsigned: see below.

    Attributes:
        keys: those keys; setting them forgets all proofs.
        withholds_unsigned: whether clients get no times while there is no key, as under access control: a server
            would refuse such a time from a user.
    """

    __slots__ = ("_elements", "_keys", "withholds_unsigned")

    def __init__(self, keys: SigningKeys | None = None, *, withholds_unsigned: bool = False) -> None:
        self._keys = keys or SigningKeys()
        self.withholds_unsigned = withholds_unsigned
        self._elements: dict[int, bytes] = {}

    @property
    def keys(self) -> SigningKeys:
        """See above."""
        return self._keys

    @keys.setter
    def keys(self, keys: SigningKeys) -> None:
        self._keys = keys
        self._elements = {}

    def element(self, time: int) -> bytes:
        """The ``signature`` of a packed cluster time; the dummy if there is no key for it."""
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
