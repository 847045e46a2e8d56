"""Chunk ranges and chunk documents."""

import bson
import pytest
from bson.objectid import ObjectId
from bson.timestamp import Timestamp

from shardwright.sharding.chunks import Chunk, ChunkHistory, ChunkPlacement, ChunkRange
from shardwright.wire.errors import CommandError
from tests.sharding.chunk_worlds import EPOCH, PATTERN, TIME, bound, chunk, key, span, version


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
