"""Frames and OP_MSG: every case whole, byte by byte and with trailing bytes, and arbitrary input from hypothesis."""

import struct

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.errors import RemoteProtocolError
from shardwright.wire.frames import OP_MSG, FrameReader
from shardwright.wire.message import (
    CHECKSUM_PRESENT,
    MORE_TO_COME,
    OpMsg,
    encode_sequence,
    op_msg,
    split_documents,
    with_body,
    with_checksum,
)

BODY = bson.encode({"insert": "c", "$db": "d"})
DOCUMENTS = [bson.encode({"_id": n, "text": "x" * n}) for n in range(5)]
PLAIN = op_msg(BODY, request_id=7)
WITH_SEQUENCE = op_msg(BODY, request_id=8, sections=encode_sequence(b"documents", DOCUMENTS))
SUMMED = with_checksum(WITH_SEQUENCE)
FRAMES = [PLAIN, WITH_SEQUENCE, SUMMED]


def raw_frame(sections: bytes, flags: int = 0) -> bytes:
    return struct.pack("<iiiiI", 20 + len(sections), 1, 0, OP_MSG, flags) + sections


@pytest.mark.parametrize("frame", FRAMES)
def test_frame_reader_takes_a_frame_in_one_piece(frame: bytes) -> None:
    reader = FrameReader()
    reader.feed(frame)
    assert reader.next_frame() == frame
    assert reader.next_frame() is None
    assert not reader.available


@pytest.mark.parametrize("frame", FRAMES)
def test_frame_reader_takes_a_frame_byte_by_byte(frame: bytes) -> None:
    reader = FrameReader()
    for position in range(len(frame)):
        assert reader.next_frame() is None
        reader.feed(frame[position : position + 1])
    assert reader.next_frame() == frame


@pytest.mark.parametrize("frame", FRAMES)
def test_frame_reader_keeps_trailing_bytes(frame: bytes) -> None:
    reader = FrameReader()
    reader.feed(frame + PLAIN[:10])
    assert reader.next_frame() == frame
    assert reader.next_frame() is None
    assert reader.bytes_missing == len(PLAIN) - 10
    assert reader.available
    reader.feed(PLAIN[10:])
    assert reader.next_frame() == PLAIN


@pytest.mark.parametrize("length", [-1, 0, 15, 48_000_001, 2**31 - 1])
def test_frame_reader_refuses_impossible_lengths(length: int) -> None:
    reader = FrameReader()
    reader.feed(struct.pack("<i", length))
    with pytest.raises(RemoteProtocolError, match="length"):
        reader.next_frame()


@given(st.lists(st.sampled_from(FRAMES), max_size=5), st.data())
def test_frame_reader_splits_any_stream_however_it_arrives(frames: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(frames)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=10)))
    reader, found = FrameReader(), []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        reader.feed(stream[start:end])
        while (frame := reader.next_frame()) is not None:
            found.append(frame)
    assert found == frames


def test_op_msg_with_a_lone_body() -> None:
    message = OpMsg(PLAIN)
    assert (message.request_id, message.response_to, message.body) == (7, 0, BODY)
    assert list(message.sequences) == []


@pytest.mark.parametrize("body_first", [True, False])
def test_op_msg_takes_sections_in_any_order(body_first: bool) -> None:
    body, sequence = b"\0" + BODY, encode_sequence(b"documents", DOCUMENTS)
    message = OpMsg(raw_frame(body + sequence if body_first else sequence + body))
    assert message.body == BODY
    assert [each.name for each in message.sequences] == [b"documents"]
    assert message.sequences[0].documents == DOCUMENTS
    assert message.sequences[0].section() == sequence


def test_op_msg_checksum_is_verified() -> None:
    assert OpMsg(SUMMED).sequences[0].documents == DOCUMENTS
    broken = SUMMED[:30] + bytes([SUMMED[30] ^ 1]) + SUMMED[31:]
    with pytest.raises(RemoteProtocolError, match="checksum"):
        OpMsg(broken)


def test_with_another_body_the_ids_stay() -> None:
    body = bson.encode({"ok": 1})
    answer = op_msg(BODY, request_id=3, response_to=8, flags=MORE_TO_COME, sections=encode_sequence(b"x", DOCUMENTS))
    assert with_body(with_checksum(answer), body) == op_msg(body, request_id=3, response_to=8)


def test_op_msg_flags() -> None:
    message = OpMsg(op_msg(BODY, request_id=1, flags=MORE_TO_COME | 1 << 16))
    assert message.flags & MORE_TO_COME
    assert message.is_exhaust_allowed


MALFORMED = {
    "no section": raw_frame(b""),
    "no body": raw_frame(encode_sequence(b"documents", DOCUMENTS)),
    "two bodies": raw_frame(b"\0" + BODY + b"\0" + BODY),
    "two sequences of a name": raw_frame(b"\0" + BODY + encode_sequence(b"a", []) + encode_sequence(b"a", [])),
    "unknown kind": raw_frame(b"\2" + BODY),
    "unknown required flag": raw_frame(b"\0" + BODY, flags=1 << 5),
    "body past the end": raw_frame(b"\0" + BODY[:-3]),
    "body of two bytes": raw_frame(b"\0\5\0"),
    "sequence past the end": raw_frame(b"\0" + BODY + b"\1" + struct.pack("<i", 100) + b"a\0"),
    "sequence without a name": raw_frame(b"\0" + BODY + b"\1" + struct.pack("<i", 6) + b"ab"),
    "sequence of a negative size": raw_frame(b"\0" + BODY + b"\1" + struct.pack("<i", -1) + b"ab"),
    "checksum that is not there": raw_frame(b"", flags=CHECKSUM_PRESENT),
}


@pytest.mark.parametrize("frame", MALFORMED.values(), ids=MALFORMED.keys())
def test_op_msg_refuses_malformed_messages(frame: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        OpMsg(frame)


@pytest.mark.parametrize(
    "data", [b"\1", b"\5\0\0\0", b"\4\0\0\0\0", b"\xff\xff\xff\xff\0", DOCUMENTS[0] + b"\0", DOCUMENTS[1][:-1]]
)
def test_split_documents_refuses_inconsistent_lengths(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        split_documents(data)


@given(st.binary(max_size=200), st.integers(0, 0xFFFFFFFF))
def test_any_bytes_are_parsed_or_refused(sections: bytes, flags: int) -> None:
    try:
        message = OpMsg(raw_frame(sections, flags))
        for sequence in message.sequences:
            assert b"".join(sequence.documents) == sequence.data
    except RemoteProtocolError:
        return


@given(st.sampled_from(FRAMES), st.data())
def test_any_damaged_message_is_parsed_or_refused(frame: bytes, data: st.DataObject) -> None:
    position = data.draw(st.integers(16, len(frame) - 1))
    mutilated = frame[:position] + bytes([data.draw(st.integers(0, 255))]) + frame[position + 1 :]
    try:
        for sequence in OpMsg(mutilated).sequences:
            assert b"".join(sequence.documents) == sequence.data
    except RemoteProtocolError:
        return
