"""The vector clock."""

from typing import Any

import bson
import pytest
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.clock import VectorClock, VectorTime, signed_cluster_time, with_cluster_time
from shardwright.wire import rawbson
from shardwright.wire.errors import CommandError
from shardwright.wire.message import OpMsg, encode_sequence, op_msg
from shardwright.wire.request import Request

packed = st.integers(0, 2**64 - 1)
times = st.builds(VectorTime, packed, packed, packed)


@given(times, times, times)
def test_join_is_commutative_associative_and_idempotent(a: VectorTime, b: VectorTime, c: VectorTime) -> None:
    assert a.joined(b) == b.joined(a)
    assert a.joined(b).joined(c) == a.joined(b.joined(c))
    assert a.joined(a) is a


@given(times)
def test_gossip_arrives(time: VectorTime) -> None:
    message = rawbson.append(bson.encode({"ping": 1}), time.internal_elements())
    assert VectorTime.from_message(message, rawbson.index(message)) == time


def test_clients_get_the_cluster_time_alone() -> None:
    message = rawbson.from_elements(VectorTime(5 << 32 | 1, 6, 7).external_elements())
    assert bson.decode(message) == {
        "$clusterTime": {"clusterTime": Timestamp(5, 1), "signature": {"hash": bytes(20), "keyId": 0}}
    }
    assert bson.decode(message)["$clusterTime"] == bson.decode(bson.encode(signed_cluster_time(Timestamp(5, 1))))


def test_unknown_times_are_not_sent() -> None:
    assert VectorTime().internal_elements() == b""


def test_clock_advances_only_forward() -> None:
    clock = VectorClock()
    assert clock.advance(VectorTime(3, 1, 0))
    assert not clock.advance(VectorTime(2, 1, 0))
    assert clock.advance(VectorTime(2, 2, 0))
    assert clock.time == VectorTime(3, 2, 0)
    assert clock.internal_elements == clock.time.internal_elements()


@given(st.lists(times, max_size=5))
def test_observing_messages_is_joining_their_times(seen: list[VectorTime]) -> None:
    clock, expected = VectorClock(), VectorTime()
    for time in seen:
        message = rawbson.append(bson.encode({"ok": 1.0}), time.internal_elements())
        clock.observe(message, rawbson.index(message))
        expected = expected.joined(time).ordered()
    assert clock.time == expected


def test_placement_times_are_taken_in_though_the_cluster_time_is_old() -> None:
    clock = VectorClock(VectorTime(9, 1, 1))
    message = rawbson.from_elements(VectorTime(5, 3, 2).internal_elements())
    clock.observe(message, rawbson.index(message))
    assert clock.time == VectorTime(9, 3, 2)


def test_the_times_of_a_reading_are_in_order() -> None:
    clock = VectorClock(VectorTime(9, 5, 1))
    clock.advance(VectorTime(topology_time=7))
    assert clock.time == VectorTime(9, 7, 7)
    clock.advance(VectorTime(config_time=12))
    assert clock.time == VectorTime(12, 12, 7)


@given(times)
def test_gossip_is_the_same_as_fields_and_as_elements(time: VectorTime) -> None:
    clock = VectorClock(time)
    assert bson.encode(clock.gossip()) == rawbson.from_elements(clock.internal_elements)


def request_of(**command: Any) -> Request:  # noqa: ANN401 - arguments of any type
    body = bson.encode({"ping": 1, **command, "$db": "admin"})
    return Request(OpMsg(op_msg(body, request_id=3)))


def gossiped(seconds: int) -> dict[str, Any]:
    return bson.decode(bson.encode(signed_cluster_time(Timestamp(seconds, 1))))


@pytest.mark.parametrize(("seconds", "is_at"), [(4, False), (5, True), (6, False)])
def test_a_time_that_is_the_clocks_is_recognized(seconds: int, is_at: bool) -> None:
    clock = VectorClock()
    clock.advance(VectorTime(5 << 32 | 1))
    request = request_of(**{"$clusterTime": gossiped(seconds)})
    assert clock.is_at(request.body, request.fields[b"$clusterTime"]) is is_at


def test_an_earlier_time_of_a_request_is_replaced() -> None:
    clock = VectorClock(VectorTime(5 << 32 | 1))
    request = request_of(**{"$clusterTime": gossiped(4)})
    clock.set_in(request, request.fields[b"$clusterTime"])
    assert request.document["$clusterTime"] == gossiped(5)
    assert request.message.body == request.body


def test_a_request_without_a_time_gets_the_clocks() -> None:
    sequence = encode_sequence(b"documents", [bson.encode({"$clusterTime": {}})])
    frame = op_msg(bson.encode({"insert": "c", "$db": "d"}), request_id=3, sections=sequence)
    assert with_cluster_time(frame, VectorClock()) is frame
    sent = OpMsg(with_cluster_time(frame, VectorClock(VectorTime(5 << 32 | 1))))
    assert bson.decode(sent.body) == {"insert": "c", "$db": "d", "$clusterTime": gossiped(5)}
    assert (sent.request_id, sent.sequences[0].documents) == (3, [bson.encode({"$clusterTime": {}})])


def test_a_request_keeps_the_time_that_it_has() -> None:
    frame = request_of(**{"$clusterTime": gossiped(4)}).message.frame
    assert with_cluster_time(frame, VectorClock(VectorTime(5 << 32 | 1))) is frame


def test_cluster_time_behind_its_signature_is_read_too() -> None:
    clock = VectorClock()
    message = bson.encode({"$clusterTime": {"signature": {}, "clusterTime": Timestamp(0, 8)}})
    clock.observe(message, rawbson.index(message))
    assert clock.time == VectorTime(8, 0, 0)


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"$configTime": 1}, 14), ({"$clusterTime": 1}, 14), ({"$clusterTime": {}}, 4), ({"$topologyTime": "x"}, 14)],
)
def test_malformed_gossip(fields: dict[str, object], code: int) -> None:
    message = bson.encode(fields)
    with pytest.raises(CommandError) as caught:
        VectorTime.from_message(message, rawbson.index(message))
    assert caught.value.code == code


def test_persisted_form() -> None:
    time = VectorTime(0, 5 << 32 | 2, 3 << 32)
    assert time.to_document() == {
        "_id": "vectorClockState",
        "configTime": Timestamp(5, 2),
        "topologyTime": Timestamp(3, 0),
    }
    assert VectorTime.from_document(time.to_document()) == time
