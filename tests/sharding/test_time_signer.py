"""Signing cluster times, and checking the signatures of clients' times."""

import hashlib
import hmac
from typing import Any

import bson
import pytest
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.sharding.cluster_time import (
    DUMMY_SIGNATURE_ELEMENT,
    ReceivedTime,
    SigningKey,
    SigningKeys,
    TimeSigner,
    pack_timestamp,
    proof_of,
    refresh_delay_seconds,
)
from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError

EARLY = SigningKey(7, b"k" * 20, 100 << 32)
LATE = SigningKey(8, b"l" * 20, 200 << 32)
KEYS = SigningKeys([LATE, EARLY])


def decoded(element: bytes) -> dict[str, Any]:
    signature: dict[str, Any] = bson.decode(rawbson.from_elements(element))["signature"]
    return signature


def test_a_signature_is_the_hash_of_the_last_time_of_its_range() -> None:
    expected = hmac.new(EARLY.secret, (50 << 32 | 0x1FFFF).to_bytes(8, "little"), hashlib.sha1).digest()
    signer = TimeSigner(KEYS)
    first, last, next_one = (signer.element(50 << 32 | increment) for increment in (0x10000, 0x1FFFF, 0x20000))
    assert decoded(first) == {"hash": expected, "keyId": 7}
    assert last is first  # made once
    assert decoded(next_one)["hash"] != expected


def test_the_key_that_expires_first_after_a_time_signs_it() -> None:
    signer = TimeSigner(KEYS)
    assert [decoded(signer.element(second << 32 | 1))["keyId"] for second in (1, 99, 100, 199)] == [7, 7, 8, 8]
    assert signer.element(200 << 32) is DUMMY_SIGNATURE_ELEMENT


def test_new_keys_replace_what_old_ones_signed() -> None:
    signer = TimeSigner()
    assert signer.element(5 << 32) is DUMMY_SIGNATURE_ELEMENT
    signer.keys = SigningKeys([EARLY])
    assert decoded(signer.element(5 << 32))["keyId"] == 7
    signer.keys = SigningKeys([SigningKey(9, b"m" * 20, 50 << 32), EARLY])
    assert decoded(signer.element(5 << 32))["keyId"] == 9


def test_a_bounded_number_of_signatures_is_kept() -> None:
    signer = TimeSigner(KEYS)
    for second in range(99):
        for high in range(10):
            assert decoded(signer.element(second << 32 | high << 16))["keyId"] == 7
    assert len(signer._elements) <= 256


def test_keys_are_found_until_they_expire() -> None:
    assert KEYS.find(7, 100 << 32) is None
    assert KEYS.find(7, (100 << 32) - 1) is EARLY
    assert KEYS.find(9, 1) is None


@pytest.mark.parametrize(("now", "delay"), [(0, 100), (190, 5), (200, 1), (900, 1), (-100_000, 600)])
def test_keys_are_read_again_before_they_run_out(now: int, delay: int) -> None:
    assert refresh_delay_seconds(KEYS, now) == delay


def test_without_keys_they_are_read_again_soon() -> None:
    assert refresh_delay_seconds(SigningKeys(), 1_700_000_000) == 1


def received(**changes: Any) -> ReceivedTime:  # noqa: ANN401 - malformed ones too
    time = Timestamp(50, 3)
    signature = {"hash": Binary(proof_of(EARLY, pack_timestamp(time))), "keyId": Int64(7)}
    value = {"clusterTime": time, "signature": signature} | changes
    document = bson.encode({"$clusterTime": {name: field for name, field in value.items() if field is not None}})
    return ReceivedTime.read(document, rawbson.index(document)[b"$clusterTime"])


def code_and_text(error: pytest.ExceptionInfo[CommandError]) -> tuple[int, str]:
    return error.value.code, error.value.message


def test_a_signed_time_is_accepted() -> None:
    time = received()
    assert (time.time, time.key_id) == (50 << 32 | 3, 7)
    time.check_signed(EARLY)


@pytest.mark.parametrize(
    ("signature", "key", "error"),
    [
        (
            {"hash": Binary(bytes(20)), "keyId": Int64(7)},
            EARLY,
            (204, "Proof does not match the cluster time"),
        ),
        (
            {"hash": Binary(bytes(20)), "keyId": Int64(5)},
            None,
            (211, "No keys found for HMAC that is valid for time: { ts: Timestamp(50, 3) } with id: 5"),
        ),
    ],
)
def test_a_time_that_the_cluster_has_not_signed_is_refused(
    signature: dict[str, Any], key: SigningKey | None, error: tuple[int, str]
) -> None:
    with pytest.raises(CommandError) as caught:
        received(signature=signature).check_signed(key)
    assert code_and_text(caught) == error


HASH = Binary(bytes(20))


# As a mongod 6.0.5 with authentication answers a user.
@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"signature": None}, (4, 'Missing expected field "signature"')),
        ({"signature": {}}, (4, 'Missing expected field "hash"')),
        ({"signature": {"hash": HASH}}, (4, 'Missing expected field "keyId"')),
        ({"signature": "a"}, (14, '"signature" had the wrong type. Expected object, found string')),
        (
            {"signature": {"hash": "a", "keyId": Int64(0)}},
            (14, '"hash" had the wrong type. Expected binData, found string'),
        ),
        ({"signature": {"hash": Binary(b"a"), "keyId": Int64(7)}}, (12, "Unsupported SHA1Block hash length: 1")),
        ({"clusterTime": None}, (4, 'Missing expected field "clusterTime"')),
        ({"clusterTime": "a"}, (14, '"clusterTime" had the wrong type. Expected timestamp, found string')),
    ],
)
def test_malformed_times_are_refused_as_by_mongod(changes: dict[str, Any], error: tuple[int, str]) -> None:
    with pytest.raises(CommandError) as caught:
        received(**changes)
    assert code_and_text(caught) == error


def test_a_time_has_to_be_a_document() -> None:
    document = bson.encode({"$clusterTime": 5})
    with pytest.raises(CommandError) as caught:
        ReceivedTime.read(document, rawbson.index(document)[b"$clusterTime"])
    assert code_and_text(caught) == (10065, "invalid parameter: expected an object ($clusterTime)")


@pytest.mark.parametrize(
    ("time", "error"),
    [
        (Timestamp(50, 3), None),
        (Timestamp(51, 3), (205, "New $clusterTime, 51, is too far from this node's wall clock time, 40.")),
        (Timestamp(45, 2**31), (40484, "cluster time cannot be advanced beyond its maximum value")),
    ],
)
def test_times_far_in_the_future_are_refused(time: Timestamp, error: tuple[int, str] | None) -> None:
    if error is None:
        received(clusterTime=time).check_near(40, 10)
        return
    with pytest.raises(CommandError) as caught:
        received(clusterTime=time).check_near(40, 10)
    assert code_and_text(caught) == error
