"""Merging results, compared with a model that holds all documents in one list."""

from itertools import count

import bson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardwright.router.reads.result_merger import Batch, ResultMerger, ShareTooSmallError
from shardwright.router.reads.sort_order import SortOrder
from shardwright.wire.limits import BSON_OBJECT_BYTES_MAX
from shardwright.wire.rawbson import ARRAY, DocumentArray, array_of_documents


def plain(number: int) -> bytes:
    return bson.encode({"n": number})


def sorted_by(number: int, identity: int) -> bytes:
    return bson.encode({"n": number, "id": identity, "$sortKey": [number]})


def array(documents: list[bytes]) -> DocumentArray:
    raw = array_of_documents(documents)
    return DocumentArray(raw, (ARRAY, 0, 0, len(raw)))


def drain(merger: ResultMerger, sources: list[list[bytes]], chunk: int, batch_size: int | None) -> list[list[bytes]]:
    """Feed the sources in chunks as they starve; returns the batches until the merger is done."""
    positions = [0] * len(sources)
    batches: list[list[bytes]] = []
    for _ in range(1_000):
        batch = Batch(batch_size)
        while True:
            merger.fill(batch)
            if batch.is_full or merger.is_done or not (starving := merger.starving()):
                break
            for number in starving:
                at = positions[number]
                positions[number] = at + chunk
                merger.feed(
                    number, array(sources[number][at : at + chunk]), is_exhausted=at + chunk >= len(sources[number])
                )
        batches.append(batch.documents)
        if merger.is_done:
            return batches
    raise AssertionError("the merger never ends")


@given(
    numbers=st.lists(st.lists(st.integers(-5, 5), max_size=12), min_size=1, max_size=4),
    descends=st.booleans(),
    skip=st.integers(0, 8),
    limit=st.integers(0, 12),
    chunk=st.integers(1, 5),
    batch_size=st.one_of(st.none(), st.integers(1, 6)),
)
def test_merging_sorted_shards_is_sorting_the_union(
    numbers: list[list[int]], descends: bool, skip: int, limit: int, chunk: int, batch_size: int | None
) -> None:
    identities = count()
    pairs = [[(number, next(identities)) for number in sorted(shard, reverse=descends)] for shard in numbers]
    merger = ResultMerger(len(pairs), order=SortOrder((descends,)), skip=skip, limit=limit)
    batches = drain(merger, [[sorted_by(*pair) for pair in shard] for shard in pairs], chunk, batch_size)

    # Python's sort is stable, so equal numbers keep the order of the shards, as required.
    union = sorted((pair for shard in pairs for pair in shard), key=lambda pair: pair[0], reverse=descends)
    expected = union[skip : skip + limit if limit else None]
    found = [bson.decode(document) for batch in batches for document in batch]
    assert [(document["n"], document["id"]) for document in found] == expected
    assert all("$sortKey" not in document for document in found)
    if batch_size is not None:
        assert all(len(batch) == batch_size for batch in batches[:-1])


@given(
    sizes=st.lists(st.integers(0, 12), min_size=1, max_size=4),
    skip=st.integers(0, 8),
    limit=st.integers(0, 12),
    chunk=st.integers(1, 5),
    batch_size=st.one_of(st.none(), st.integers(1, 6)),
)
def test_merging_without_order_loses_and_repeats_nothing(
    sizes: list[int], skip: int, limit: int, chunk: int, batch_size: int | None
) -> None:
    identities = count()
    sources = [[plain(next(identities)) for _ in range(size)] for size in sizes]
    merger = ResultMerger(len(sources), skip=skip, limit=limit)
    found = [document for batch in drain(merger, sources, chunk, batch_size) for document in batch]
    everything = {document for source in sources for document in source}
    available = max(len(everything) - skip, 0)
    assert len(found) == len(set(found)) == (min(available, limit) if limit else available)
    assert set(found) <= everything


def test_with_an_order_no_document_comes_before_every_source_has_spoken() -> None:
    merger = ResultMerger(2, order=SortOrder((False,)))
    merger.feed(0, array([sorted_by(1, 0)]), is_exhausted=False)
    batch = Batch(None)
    merger.fill(batch)
    assert batch.documents == []
    assert merger.starving() == [1]
    merger.feed(1, array([]), is_exhausted=True)
    merger.fill(batch)
    assert [bson.decode(document)["n"] for document in batch.documents] == [1]
    assert merger.starving() == [0]


def test_without_an_order_nobody_is_asked_while_documents_are_here() -> None:
    merger = ResultMerger(2)
    merger.feed(0, array([plain(1)]), is_exhausted=False)
    assert merger.starving() == []
    merger.fill(Batch(None))
    assert merger.starving() == [0, 1]


def test_a_reached_limit_is_the_end_though_sources_have_more() -> None:
    merger = ResultMerger(1, limit=1)
    merger.feed(0, array([plain(1), plain(2)]), is_exhausted=False)
    batch = Batch(None)
    merger.fill(batch)
    assert len(batch.documents) == 1
    assert merger.is_done
    assert merger.starving() == []


def test_a_batch_holds_sixteen_megabytes_but_always_one_document() -> None:
    def large(megabytes: int) -> bytes:
        return bson.encode({"x": bytes(megabytes * 1024 * 1024)})

    merger = ResultMerger(1)
    merger.feed(
        0, array([large(7), large(7), large(7), bson.encode({"x": bytes(BSON_OBJECT_BYTES_MAX)})]), is_exhausted=True
    )
    batches: list[int] = []
    while not merger.is_done:
        batch = Batch(None)
        merger.fill(batch)
        batches.append(len(batch.documents))
    assert batches == [2, 1, 1]


def test_only_a_merge_that_leaves_results_alone_is_unbounded() -> None:
    assert ResultMerger(1).is_unbounded
    assert not ResultMerger(1, skip=1).is_unbounded
    assert not ResultMerger(1, limit=1).is_unbounded
    assert not ResultMerger(1, order=SortOrder((False,))).is_unbounded


@given(
    numbers=st.lists(st.lists(st.integers(-5, 5), max_size=12), min_size=1, max_size=4),
    skip=st.integers(0, 4),
    limit=st.integers(1, 12),
    share=st.integers(1, 12),
)
def test_shares_have_the_whole_result_or_say_that_they_have_not(
    numbers: list[list[int]], skip: int, limit: int, share: int
) -> None:
    whole = [[sorted_by(*pair) for pair in sorted((number, 0) for number in shard)] for shard in numbers]

    def result(merger: ResultMerger, sources: list[list[bytes]]) -> list[bytes]:
        batch = Batch(limit)
        for number, documents in enumerate(sources):
            merger.feed(number, array(documents), is_exhausted=True)
        merger.fill(batch)
        assert not merger.starving()
        return batch.documents

    order = SortOrder((False,))
    expected = result(ResultMerger(len(whole), order=order, skip=skip, limit=limit), whole)
    merger = ResultMerger(len(whole), order=order, skip=skip, limit=limit, share=share)
    found = result(merger, [shard[:share] for shard in whole])
    assert found == expected[: len(found)]
    try:
        merger.check_shares()
    except ShareTooSmallError:
        # Some shard has used up its share, and the result goes on after its last document.
        assert any(len(shard) >= share for shard in whole)
    else:
        assert found == expected
        assert merger.is_done


def test_shares_are_enough_if_the_last_document_of_one_is_the_last_of_the_result() -> None:
    merger = ResultMerger(2, order=SortOrder((False,)), limit=3, share=2)
    merger.feed(0, array([sorted_by(0, 0), sorted_by(2, 1)]), is_exhausted=True)
    merger.feed(1, array([sorted_by(1, 2), sorted_by(3, 3)]), is_exhausted=True)
    batch = Batch(3)
    merger.fill(batch)
    merger.check_shares()
    assert len(batch.documents) == 3


def test_a_share_with_an_open_cursor_is_not_used_up() -> None:
    merger = ResultMerger(1, order=SortOrder((False,)), limit=3, share=2)
    merger.feed(0, array([sorted_by(0, 0)]), is_exhausted=False)
    merger.fill(Batch(3))
    assert merger.starving() == [0]
    merger.feed(0, array([sorted_by(1, 1)]), is_exhausted=True)
    merger.fill(Batch(3))
    assert merger.starving() == []
    with pytest.raises(ShareTooSmallError):
        merger.check_shares()
