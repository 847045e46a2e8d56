"""Chunk ranges and chunk documents."""

from collections.abc import Iterator
from typing import Any
from uuid import UUID

import bson
import pytest
from bson.binary import Binary
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.objectid import ObjectId
from bson.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st

from shardwright.sharding.chunks import Chunk, ChunkHistory, ChunkPlacement, ChunkRange, read_placements
from shardwright.wire.errors import CommandError
from tests.sharding.chunk_worlds import EPOCH, PATTERN, TIME, bound, chunk, key, span, version

SMALL = st.integers(0, 3)
KEY_VALUES = st.sampled_from([MinKey(), MaxKey(), 1, 2.5, "text", None, ObjectId(), {"a": 1}])


def test_a_range_is_half_open() -> None:
    each = span(0, 10)
    assert each.contains_key(key(0))
    assert each.contains_key(key(9.5))
    assert not each.contains_key(key(10))


def test_containing_and_overlapping() -> None:
    assert span(0, 10).contains(span(0, 10))
    assert not span(0, 10).contains(span(5, 11))
    assert span(0, 10).overlaps(span(9, 11))
    assert not span(0, 10).overlaps(span(10, 11))
    assert span(0, 10).is_same_as(span(0.0, 10.0))


@pytest.mark.parametrize(("low", "high"), [(1, 1), (2, 1), (1, 1.0)])
def test_an_empty_range_is_refused(low: object, high: object) -> None:
    with pytest.raises(CommandError) as caught:
        ChunkRange.of(PATTERN, bound(low), bound(high))
    assert caught.value.code == 2


def test_range_as_text_and_document() -> None:
    assert str(span(0, 10)) == "[{ x: 0 }, { x: 10 })"
    assert bson.decode(bson.encode(span(0, 10).to_document())) == {"min": {"x": 0}, "max": {"x": 10}}


def moved_chunk() -> Chunk:
    return Chunk(
        ObjectId(),
        chunk(0, 1, "s", 1, 0).uuid,
        bound(0),
        bound(10),
        "s2",
        version(2, 0),
        (ChunkHistory(Timestamp(2000, 66), "s2"), ChunkHistory(TIME, "s1")),
        jumbo=False,
    )


def test_document_round_trip() -> None:
    each = moved_chunk()
    document = bson.decode(bson.encode(each.to_document()))
    assert list(document) == ["_id", "uuid", "min", "max", "shard", "lastmod", "jumbo", "history"]
    assert Chunk.from_document(document, epoch=EPOCH, timestamp=TIME) == each


def test_a_new_chunk_has_no_jumbo_field() -> None:
    assert "jumbo" not in chunk(0, 1, "s", 1, 0).to_document()


def test_placement_from_raw_bytes_is_that_of_the_decoded_document() -> None:
    each = moved_chunk()
    assert ChunkPlacement.from_raw(bson.encode(each.to_document())) == each.placement
    assert each.placement.history == ((2000 << 32 | 66, "s2"), (1000 << 32 | 7, "s1"))


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [("shard", None, 14), ("min", 5, 14), ("lastmod", 1, 14), ("history", {}, 14), ("history", [1], 14)],
)
def test_documents_with_wrong_types(field: str, value: object, code: int) -> None:
    document = moved_chunk().to_document() | {field: value}
    with pytest.raises(CommandError) as caught:
        ChunkPlacement.from_raw(bson.encode(document))
    assert caught.value.code == code
    with pytest.raises(CommandError) as caught:
        Chunk.from_document(bson.decode(bson.encode(document)), epoch=EPOCH, timestamp=TIME)
    assert caught.value.code == code


@pytest.mark.parametrize("field", ["min", "max", "shard", "lastmod"])
def test_documents_without_a_field(field: str) -> None:
    document = moved_chunk().to_document()
    del document[field]
    with pytest.raises(CommandError) as caught:
        ChunkPlacement.from_raw(bson.encode(document))
    assert caught.value.code == 4


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("is_cached", [False, True])
@given(st.data())
def test_many_are_read_as_each_is(wrapped: bool, is_cached: bool, data: st.DataObject) -> None:
    """In whatever order their fields are, with whatever others, and whatever is wrong with them."""
    start, end = (12, 1) if wrapped else (0, 0)
    documents = data.draw(st.lists(chunk_documents(is_cached=is_cached, wrapped=wrapped), max_size=4))
    one_by_one = (ChunkPlacement.from_raw(each, start, is_cached=is_cached) for each in documents)
    together = read_placements(documents, start, end, is_cached=is_cached)
    assert outcome(together) == outcome(one_by_one)


def outcome(placements: Iterator[ChunkPlacement]) -> tuple[list[ChunkPlacement], tuple[int, str] | None]:
    """Return the placements that are read, and the error that ends the reading."""
    read = []
    try:
        for each in placements:
            read.append(each)
    except CommandError as error:
        return read, (error.code, error.message)
    return read, None


@st.composite
def chunk_documents(draw: st.DrawFn, *, is_cached: bool, wrapped: bool) -> bytes:
    """Chunk documents, most of them as servers write them."""
    lower, upper = (draw(st.dictionaries(st.sampled_from("ab"), KEY_VALUES, max_size=2)) for _ in range(2))
    shards = draw(st.lists(st.text("s\u00e9", max_size=3), min_size=1, max_size=3))
    history = [{"validAfter": Timestamp(9 - n, n), "shard": shard} for n, shard in enumerate(shards)]
    fields: list[tuple[str, Any]] = [("max", upper), ("shard", shards[0]), ("lastmod", Timestamp(7, draw(SMALL)))]
    if draw(st.booleans()):
        fields.append(("jumbo", draw(st.booleans())))
    fields.append(("history", history))
    identity = ("_id", ObjectId()), ("uuid", Binary.from_uuid(UUID(int=1)))
    fields = [("_id", lower), *fields] if is_cached else [*identity, ("min", lower), *fields]
    change = draw(st.sampled_from(["none", "none", "none", "order", "missing", "added", "type"]))
    position = draw(st.integers(0, len(fields) - 1))
    if change == "order":
        fields = draw(st.permutations(fields))
    elif change == "missing":
        del fields[position]
    elif change == "added":
        fields.insert(position, ("onCurrentShardSince", Timestamp(5, 5)))
    elif change == "type":
        fields[position] = (fields[position][0], draw(st.sampled_from([5, "text", ObjectId(), {}])))
    document = dict(fields)
    return bson.encode({"chunks": document} if wrapped else document)
