"""The ``$clusterTime`` of a client, and its validation before a node may advance its clock to it.

A time that is ahead of a node's clock has to be signed by another node of the cluster. Otherwise a client could make
one up and advance the clock for good. Earlier times change nothing, and are not checked.

A change stream starts after all writes that have been acknowledged when the client's command arrives, and before all
later ones. The ``operationTime`` in a mongod's reply to a ping is too late for that: the mongod may execute writes that
arrive after the ping before it.

A shard that lists `ACKNOWLEDGED_TIME` among the ``extensions`` of its hello answers a ping with this field before it
acknowledges another write. The ``operationTime`` of the reply is then at least as late as each acknowledged write, and
earlier than each write that reaches the shard after the ping.
"""

from dataclasses import dataclass
from hmac import compare_digest
from typing import Final

from shardwright.sharding.time_signer import (
    DUMMY_SIGNATURE_ELEMENT,
    HASH_BYTES,
    PURPOSE,
    SigningKey,
    TimeSigner,
    is_proven,
)
from shardwright.sharding.timestamps import unpack_timestamp
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.rawbson import BINARY, BOOL, INT32, INT64, OBJECT, TIMESTAMP, Span, decode_value, element, index
from shardwright.wire.repeated_fields import refuse_repeated_fields
from shardwright.wire.type_names import type_name

DUMMY_KEY_ID: Final = 0
"""``keyId`` of an unsigned time."""

_CHECKED: Final = -1
"""Placeholder for the key of a signature that needs no further check."""

_DUMMY_PROOF: Final = bytes(HASH_BYTES)

_TIME_NAME: Final = b"\x11clusterTime\0"
_NAME_AT: Final = 4 + len(_TIME_NAME)

_HALF_MAX: Final = 2**31 - 1


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
