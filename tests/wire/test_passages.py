"""Frames are recognised if they differ from a known one only where bytes are free, and only in its epoch."""

from collections.abc import Sequence

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.message import op_msg
from shardwright.wire.passages import EPOCH, Passage, PassageTable
from shardwright.wire.sections import encode_sequence


def frame(value: int = 1, *, name: str = "find", request_id: int = 1) -> bytes:
    return op_msg(bson.encode({name: "orders_of_the_shop", "value": value, "$db": "shop"}), request_id=request_id)


def place(whole: bytes, value: int = 1) -> tuple[int, int]:
    at = whole.index(value.to_bytes(4, "little"), whole.index(b"value"))
    return at, at + 4


def inserting(documents: Sequence[bytes], name: bytes = b"documents") -> bytes:
    body = bson.encode({"insert": "orders", "$db": "shop"})
    return op_msg(body, request_id=1, sections=encode_sequence(name, documents))


def known(whole: bytes, *free: tuple[int, int]) -> Passage:
    return Passage(whole, free, EPOCH.number)


class TestLayout:
    def test_free_bytes_may_differ(self) -> None:
        passage = known(frame(), place(frame()))
        assert passage.is_of(frame(7, request_id=99))
        assert not known(frame()).is_of(frame(7))

    @given(st.integers(0, 200), st.integers(1, 255))
    def test_any_other_byte_decides(self, at: int, by: int) -> None:
        whole = frame()
        start, end = place(whole)
        at %= len(whole)
        changed = whole[:at] + bytes([(whole[at] + by) % 256]) + whole[at + 1 :]
        assert known(whole, (start, end)).is_of(changed) == (start <= at < end or 4 <= at < 12)

    @pytest.mark.parametrize("other", [frame() + b"\0", frame()[:-1], frame()[:20], b""])
    def test_other_lengths(self, other: bytes) -> None:
        assert not known(frame()).is_of(other)


class TestDocumentAtTheEnd:
    DOCUMENTS = (bson.encode({"a": 1}), bson.encode({"b": "x" * 50}), bson.encode({}))

    def passage(self) -> Passage:
        whole = inserting([self.DOCUMENTS[0]])
        at = len(whole) - len(self.DOCUMENTS[0])
        return Passage(whole, (), EPOCH.number, (at - len(b"documents\0") - 4, at))

    def test_any_document(self) -> None:
        for document in self.DOCUMENTS:
            assert self.passage().is_of(inserting([document]))

    @pytest.mark.parametrize(
        "other",
        [
            inserting(DOCUMENTS),
            inserting([]),
            inserting([DOCUMENTS[0]], b"documentz"),
            inserting([DOCUMENTS[0]]) + b"\0",
            inserting([b"\4\0\0\0"]),
        ],
    )
    def test_nothing_else(self, other: bytes) -> None:
        assert not self.passage().is_of(other)

    @given(st.integers(0, 200), st.integers(1, 255))
    def test_the_beginning_decides(self, at: int, by: int) -> None:
        whole = inserting([self.DOCUMENTS[1]])
        document_at = len(whole) - len(self.DOCUMENTS[1])
        at = at % document_at
        changed = whole[:at] + bytes([(whole[at] + by) % 256]) + whole[at + 1 :]
        # The length of the frame was compared with what has arrived before.
        assert self.passage().is_of(changed) == (at < 12)


class TestTable:
    def test_the_second_frame_is_learned(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        assert not table.is_wanted(frame())
        assert table.is_wanted(frame())
        table.add(frame(), known(frame()))
        assert table.find(frame()) is not None
        assert table.find(frame(2)) is None

    def test_a_later_passage_replaces_those_of_its_layout(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        stale, other, current = known(frame(), place(frame())), known(frame(2)), known(frame(3), place(frame(3), 3))
        for each in (stale, other, current):
            table.add(frame(3), each)
        assert table.find(frame(1)) is current

    def test_another_epoch(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        table.add(frame(), known(frame()))
        EPOCH.bump()
        assert table.find(frame()) is None

    def test_layouts_out_of_use_make_room(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        table.is_wanted(frame())
        for value in range(100):
            if table.is_wanted(frame(value)):
                table.add(frame(value), known(frame(value)))
        assert table.find(frame(0)) is None
        assert table.find(frame(90)) is not None

    def test_many_beginnings(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        for number in range(5_000):
            table.is_wanted(frame(name=f"find{number:04}"))
        assert len(table._passages) <= 1_024
