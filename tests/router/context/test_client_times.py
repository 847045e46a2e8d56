"""Cluster times of clients that advance the router's clock."""

from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias

import bson
import pytest
import trio
from bson.binary import Binary
from bson.int64 import Int64
from bson.timestamp import Timestamp

from shardwright.router.context.client_times import ClientTimes
from shardwright.sharding.clock import VectorClock, VectorTime
from shardwright.sharding.cluster_time import SigningKey, SigningKeys, TimeSigner, pack_timestamp, proof_of
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.request import Request

KEY = SigningKey(7, b"k" * 20, 1000 << 32)
NEXT_KEY = SigningKey(8, b"l" * 20, 2000 << 32)
NOW = Timestamp(500, 1)
SECOND = 1 << 32


User: TypeAlias = Callable[[], Awaitable[bool]]
"""Says whether the user may advance the clock."""


async def ordinary_user() -> bool:
    return False


async def trusted_user() -> bool:
    return True


class Router:
    """The part of a router that receives times. Its config servers have two keys, the first of which is cached."""

    def __init__(self, *, answers: bool = True) -> None:
        self.clock = VectorClock(VectorTime(pack_timestamp(NOW)))
        self.signer = TimeSigner(SigningKeys([KEY]))
        self.refreshes = 0
        self._answers = answers
        self._times = ClientTimes(self.clock, self.signer, self._refresh, 100, lambda: NOW.time)

    async def _refresh(self) -> None:
        self.refreshes += 1
        if not self._answers:
            raise CommandError(ErrorCode.HostUnreachable, "no config servers")
        self.signer.keys = SigningKeys([KEY, NEXT_KEY])

    def receive(self, time: Timestamp, signature: dict[str, Any], user: User | None = None) -> Request:
        """Return a request that gossips a time, after the exchange."""
        body = {"insert": "c", "$clusterTime": {"clusterTime": time, "signature": signature}, "$db": "d"}
        sequence = encode_sequence(b"documents", [bson.encode({"_id": 1})])
        request = Request(OpMsg(op_msg(bson.encode(body), request_id=3, sections=sequence)))

        async def main() -> Request:
            return await self._times.exchange(request, request.fields[b"$clusterTime"], user)

        return trio.run(main)

    def refusal(self, time: Timestamp, signature: dict[str, Any], user: User | None = None) -> ErrorCode:
        """The error for a request that gossips a time."""
        with pytest.raises(CommandError) as caught:
            self.receive(time, signature, user)
        assert self.clock.time.cluster_time == pack_timestamp(NOW)
        return ErrorCode(caught.value.code)


def signature(time: Timestamp, key: SigningKey = KEY) -> dict[str, Any]:
    return {"hash": Binary(proof_of(key, pack_timestamp(time))), "keyId": Int64(key.id)}


def after(seconds: int) -> Timestamp:
    return Timestamp(NOW.time + seconds, 1)


DUMMY = {"hash": Binary(bytes(20)), "keyId": Int64(0)}


def test_a_signed_time_advances_the_clock() -> None:
    router = Router()
    request = router.receive(after(5), signature(after(5)))
    assert router.clock.time.cluster_time == pack_timestamp(after(5))
    assert request.document["$clusterTime"]["clusterTime"] == after(5)
    assert router.refreshes == 0


def test_a_signed_time_in_another_form_advances_the_clock() -> None:
    router = Router()
    router.receive(after(5), dict(reversed(signature(after(5)).items())))
    assert router.clock.time.cluster_time == pack_timestamp(after(5))


def test_an_unknown_key_is_looked_up() -> None:
    router = Router()
    router.receive(after(5), signature(after(5), NEXT_KEY))
    assert router.clock.time.cluster_time == pack_timestamp(after(5))
    assert router.refreshes == 1


@pytest.mark.parametrize("answers", [True, False])
def test_a_key_that_the_cluster_does_not_have_is_refused(answers: bool) -> None:
    router = Router(answers=answers)
    unknown = SigningKey(9, b"m" * 20, 1000 << 32)
    assert router.refusal(after(5), signature(after(5), unknown)) is ErrorCode.KeyNotFound
    assert router.refreshes == 1


def test_a_wrong_proof_is_refused() -> None:
    assert Router().refusal(after(5), DUMMY | {"keyId": Int64(KEY.id)}) is ErrorCode.TimeProofMismatch


def test_a_time_far_in_the_future_is_refused_though_it_is_signed() -> None:
    assert Router().refusal(after(101), signature(after(101))) is ErrorCode.ClusterTimeFailsRateLimiter


def test_an_unsigned_time_is_neither_believed_nor_passed_on() -> None:
    router = Router()
    request = router.receive(after(5), DUMMY)
    assert router.clock.time.cluster_time == pack_timestamp(NOW)
    assert request.document == {"insert": "c", "$db": "d"}
    assert request.documents(b"documents") == [bson.encode({"_id": 1})]


def test_an_unsigned_time_of_a_user_is_refused() -> None:
    router = Router()
    assert router.refusal(after(5), DUMMY, ordinary_user) is ErrorCode.KeyNotFound
    assert router.refreshes == 0
    assert router.receive(after(-5), DUMMY, ordinary_user).document["$clusterTime"]["clusterTime"] == NOW


@pytest.mark.parametrize("signature", [DUMMY, {"hash": Binary(b"x" * 20), "keyId": Int64(12345)}], ids=str)
def test_a_user_who_may_advance_the_clock_needs_no_signature(signature: dict[str, Any]) -> None:
    router = Router()
    router.receive(after(5), signature, trusted_user)
    assert router.clock.time.cluster_time == pack_timestamp(after(5))
    assert router.refreshes == 0


def test_a_user_who_may_advance_the_clock_may_not_do_so_without_limit() -> None:
    assert Router().refusal(after(200), DUMMY, trusted_user) is ErrorCode.ClusterTimeFailsRateLimiter


def test_a_forged_hash_without_a_key_is_refused_from_anybody() -> None:
    assert Router().refusal(after(5), {"hash": Binary(b"x" * 20), "keyId": Int64(0)}) is ErrorCode.KeyNotFound


def test_an_earlier_time_is_not_checked_and_becomes_the_clocks() -> None:
    router = Router()
    request = router.receive(after(-5), DUMMY | {"keyId": Int64(12345)})
    assert request.document["$clusterTime"]["clusterTime"] == NOW
    assert router.refreshes == 0
