"""Cluster times: their keys and signatures, the validation of times that clients send, and packed timestamps.

**Keys and signatures** (`SigningKeys`, ``TimeProofService`` in MongoDB). The primary of the config servers creates the
keys. There are always two that have not expired, the later one for when the first expires (``KeysRotationIntervalSec``,
90 days). All other servers cache them.

A signature is the HMAC-SHA1 of a time whose lowest 16 bits are set. So one hash serves 65,536 increments, and servers
cache hashes: signing a time is nearly always a dictionary look-up.

**Received times** (`ReceivedTime`). A ``$clusterTime`` that is ahead of a node's clock has to be signed by another node
of the cluster. Otherwise a client could make one up and advance the clock for good. Earlier times change nothing, and
are not checked.

**Acknowledged time.** A change stream starts after all writes that have been acknowledged when the client's command
arrives, and before all later ones. The ``operationTime`` in a mongod's reply to a ping is too late for that: the mongod
may execute writes that arrive after the ping before it.

A shard that lists `ACKNOWLEDGED_TIME` among the ``extensions`` of its hello answers a ping with this field before it
acknowledges another write. The ``operationTime`` of the reply is then at least as late as each acknowledged write, and
earlier than each write that reaches the shard after the ping.

**Packed timestamps** (`pack_timestamp`) are BSON timestamps as unsigned 64-bit integers, as on the wire. They sort like
timestamps.
"""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from struct import Struct
from typing import Any, Final

from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import (
    BINARY,
    BOOL,
    INT32,
    INT64,
    OBJECT,
    TIMESTAMP,
    Span,
    decode_value,
    element,
    encode_elements,
    index,
)
from shardwright.wire.rawbson.spans import type_name
from shardwright.wire.request_validation import refuse_repeated_fields

KEYS_DB: Final = "admin"
KEYS_COLLECTION: Final = "system.keys"

PURPOSE: Final = "HMAC"
"""``purpose`` of the keys that sign times; it is part of error messages too."""

_REFRESH_SECONDS_MAX: Final = 600

DUMMY_KEY_ID: Final = 0
"""``keyId`` of an unsigned time."""

_CHECKED: Final = -1
"""Placeholder for the key of a signature that needs no further check."""

_TIME_NAME: Final = b"\x11clusterTime\0"
_NAME_AT: Final = 4 + len(_TIME_NAME)

_HALF_MAX: Final = 2**31 - 1


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


_DUMMY_PROOF: Final = bytes(HASH_BYTES)


@dataclass(frozen=True, slots=True)
class ReceivedTime:
    """A cluster time with its signature: the hash ``proof``, made with the key ``key_id``. ``time`` is packed."""

    time: int
    key_id: int
    proof: bytes

    @property
    def is_unsigned(self) -> bool:
        """Whether it has the dummy signature, as in messages between servers."""
        return self.key_id == DUMMY_KEY_ID and self.proof == _DUMMY_PROOF

    @classmethod
    def read_own(cls, document: bytes, span: Span, signer: TimeSigner) -> "ReceivedTime | None":
        """Read a ``$clusterTime`` that is byte for byte what a signer with the same key writes; None for any other.

        Nearly all times are like that, and were signed before in the same moment, so that this is fast.
        """
        at = span[2] + _NAME_AT
        if not document.startswith(_TIME_NAME, at - len(_TIME_NAME)):
            return None
        time = int.from_bytes(document[at : at + 8], "little")
        signature = signer.element(time)
        if signature is DUMMY_SIGNATURE_ELEMENT or not compare_digest(document[at + 8 : span[3] - 1], signature):
            return None
        return cls(time, _CHECKED, b"")

    @classmethod
    def read(cls, document: bytes, span: Span) -> "ReceivedTime":
        """Read the value of a ``$clusterTime``.

        Raises:
            CommandError: 10065, TypeMismatch, NoSuchKey or UnsupportedFormat, as a mongod's parser; 40413, two fields
                have one name; a mongod would take the first.
        """
        if span[0] != OBJECT:
            raise CommandError(10065, "invalid parameter: expected an object ($clusterTime)")
        refuse_repeated_fields(document, span[2], "$clusterTime")
        outer = index(document, span[2])
        time = _field(outer, b"clusterTime", TIMESTAMP)
        signature_start = _field(outer, b"signature", OBJECT)[2]
        refuse_repeated_fields(document, signature_start, "$clusterTime.signature")
        signature = index(document, signature_start)
        _, _, start, end = _field(signature, b"hash", BINARY)
        proof = document[start + 5 : end]  # after the length and the subtype
        if len(proof) != HASH_BYTES:
            raise CommandError(ErrorCode.UnsupportedFormat, f"Unsupported SHA1Block hash length: {len(proof)}")
        key_id = signature.get(b"keyId")
        if key_id is not None and key_id[0] != INT32:
            key_id = _field(signature, b"keyId", INT64)
        if key_id is None:
            raise _missing(b"keyId")
        packed = int.from_bytes(document[time[2] : time[3]], "little")
        return cls(packed, int(decode_value(document, key_id)), proof)

    def check_signed(self, key: SigningKey | None) -> None:
        """Check the signature with the valid key of `key_id`; raise KeyNotFound without one, or TimeProofMismatch."""
        if key is None:
            moment = unpack_timestamp(self.time)
            raise CommandError(
                ErrorCode.KeyNotFound,
                f"No keys found for {PURPOSE} that is valid for time: {{ ts: Timestamp({moment.time}, {moment.inc}) }} "
                f"with id: {self.key_id}",
            )
        if not is_proven(key, self.time, self.proof):
            raise CommandError(ErrorCode.TimeProofMismatch, "Proof does not match the cluster time")

    def check_near(self, wall_seconds: int, drift_seconds_max: int) -> None:
        """Check that the time is at most ``drift_seconds_max`` ahead of this node's wall clock, in seconds since 1970.

        Raises:
            CommandError: ClusterTimeFailsRateLimiter; 40484, no later times could be represented.
        """
        seconds, increment = self.time >> 32, self.time & 0xFFFFFFFF
        if seconds - wall_seconds > drift_seconds_max:
            raise CommandError(
                ErrorCode.ClusterTimeFailsRateLimiter,
                f"New $clusterTime, {seconds}, is too far from this node's wall clock time, {wall_seconds}.",
            )
        if max(seconds, increment) > _HALF_MAX:
            raise CommandError(40484, "cluster time cannot be advanced beyond its maximum value")


def _field(fields: dict[bytes, Span], name: bytes, wanted: int) -> Span:
    span = fields.get(name)
    if span is None:
        raise _missing(name)
    if span[0] != wanted:
        raise CommandError(
            ErrorCode.TypeMismatch,
            f'"{name.decode()}" had the wrong type. Expected {type_name(wanted)}, found {type_name(span[0])}',
        )
    return span


def _missing(name: bytes) -> CommandError:
    return CommandError(ErrorCode.NoSuchKey, f'Missing expected field "{name.decode()}"')


ACKNOWLEDGED_TIME: Final = b"acknowledgedTime"
ACKNOWLEDGED_TIME_ELEMENT: Final = element(ACKNOWLEDGED_TIME, BOOL, b"\1")


def pack_timestamp(timestamp: Timestamp) -> int:
    """Pack seconds into the high half, increment into the low half."""
    return int(timestamp.time) << 32 | int(timestamp.inc)


def unpack_timestamp(packed: int) -> Timestamp:
    """Unpack the result of `pack_timestamp`."""
    return Timestamp(packed >> 32, packed & 0xFFFFFFFF)
