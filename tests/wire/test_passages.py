"""Frames are recognised if they differ from a known one only where bytes are free, and only in its epoch."""

from collections.abc import Sequence

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from hypothesis import given
from hypothesis import strategies as st

from shardwright.wire.message import encode_sequence, op_msg
from shardwright.wire.passages import EPOCH, InsertedDocument, Passage, PassageTable


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
        return Passage(whole, (), EPOCH.number, InsertedDocument(at - len(b"documents\0") - 4, at))

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


class TestDocumentInTheBody:
    DOCUMENTS = TestDocumentAtTheEnd.DOCUMENTS

    def frame(self, *documents: bytes, last: int = 1) -> bytes:
        array = bson.encode({str(number): RawBSONDocument(each) for number, each in enumerate(documents)})
        body = bson.encode({"insert": "orders", "documents": 1, "last": last, "$db": "shop"})
        body = body.replace(b"\x10documents\0\1\0\0\0", b"\4documents\0" + array)
        return op_msg(len(body).to_bytes(4, "little") + body[4:], request_id=1)

    def place(self) -> InsertedDocument:
        whole = self.frame(self.DOCUMENTS[0])
        at = whole.index(self.DOCUMENTS[0])
        return InsertedDocument(at - 7, at, len(whole) - at - len(self.DOCUMENTS[0]))

    def passage(self) -> Passage:
        whole = self.frame(self.DOCUMENTS[0])
        return Passage(whole, (), EPOCH.number, self.place())

    def test_any_document(self) -> None:
        for document in self.DOCUMENTS:
            assert self.passage().is_of(self.frame(document))

    def test_nothing_else(self) -> None:
        one = self.DOCUMENTS[0]
        others = [self.frame(*self.DOCUMENTS), self.frame(), self.frame(one, last=2), self.frame(one) + b"\0"]
        for other in others:
            assert not self.passage().is_of(other)

    @given(st.integers(0, 300), st.integers(1, 255))
    def test_every_other_byte_decides(self, at: int, by: int) -> None:
        document = self.DOCUMENTS[1]
        whole, start = self.frame(document), self.place().at
        at = at % len(whole)
        changed = whole[:at] + bytes([(whole[at] + by) % 256]) + whole[at + 1 :]
        # The length of the frame was compared with what has arrived before.
        is_free = at < 12 or start + 4 <= at < start + len(document)
        assert self.passage().is_of(changed) == is_free

    def test_it_is_moved_to_the_end_and_back(self) -> None:
        for document in self.DOCUMENTS:
            whole = self.frame(document)
            moved = self.place().moved_to_end(whole)
            assert moved.endswith(document)
            assert len(moved) == len(whole)
            assert self.place().moved_back(moved, len(document)) == whole


class TestTable:
    def test_the_second_frame_is_learned(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        assert not table.is_wanted(frame(), b"")
        assert table.is_wanted(frame(), b"")
        table.add(frame(), b"", known(frame()))
        assert table.find(frame(), b"") is not None
        assert table.find(frame(2), b"") is None

    def test_a_later_passage_replaces_those_of_its_layout(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        stale, other, current = known(frame(), place(frame())), known(frame(2)), known(frame(3), place(frame(3), 3))
        for each in (stale, other, current):
            table.add(frame(3), b"", each)
        assert table.find(frame(1), b"") is current

    def test_another_epoch(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        table.add(frame(), b"", known(frame()))
        EPOCH.bump()
        assert table.find(frame(), b"") is None

    def test_layouts_out_of_use_make_room(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        table.is_wanted(frame(), b"")
        for value in range(100):
            if table.is_wanted(frame(value), b""):
                table.add(frame(value), b"", known(frame(value)))
        assert table.find(frame(0), b"") is None
        assert table.find(frame(90), b"") is not None

    def test_many_beginnings(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        for number in range(20_000):
            table.is_wanted(frame(name=f"find{number:05}"), b"")
        assert len(table._passages) <= 16_384

    def test_another_permit(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        assert not table.is_wanted(frame(), b"a")
        assert not table.is_wanted(frame(), b"b")
        table.add(frame(), b"a", known(frame()))
        assert table.find(frame(), b"a") is not None
        assert table.find(frame(), b"b") is None

    def test_many_passages(self) -> None:
        table: PassageTable[Passage] = PassageTable()
        for number in range(40_000):
            permit = (number // 10).to_bytes(8, "little")
            if table.is_wanted(frame(number), permit):
                table.add(frame(number), permit, known(frame(number)))
        assert 0 < sum(map(len, table._passages.values())) <= 16_384
