"""Division of documents into commands."""

import bson

from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX, BSON_OBJECT_INTERNAL_BYTES_MAX, ITEMS_MAX, write_batches


def test_nothing_is_no_batch() -> None:
    assert list(write_batches([])) == []


def test_a_batch_has_room_for_the_rest_of_a_command() -> None:
    sizes = [3_000_000, 9_000_000, 9_000_000, BSON_OBJECT_BYTES_MAX - 100, 1, 2, *[1_000] * 40_000]
    documents = [{"number": number, "value": "x" * size} for number, size in enumerate(sizes)]
    batches = list(write_batches(documents))
    assert [each["number"] for batch in batches for each in batch] == list(range(len(sizes)))
    assert [len(batch) for batch in batches[:4]] == [2, 1, 2, 10_000]
    for batch in batches:
        assert len(batch) <= ITEMS_MAX
        assert len(bson.encode({"insert": "chunks", "documents": batch})) < BSON_OBJECT_INTERNAL_BYTES_MAX - 1_000
