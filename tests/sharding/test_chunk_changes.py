"""Splits, merges and moves; the expected versions were read off a config server of MongoDB 6.0.5."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.timestamp import Timestamp

from shardwright.sharding.chunk_changes import (
    ChunkChanges,
    Migration,
    bump_minor,
    clear_jumbo,
    ensure_version_is_greater_than,
    merge,
    move,
    split,
)
from shardwright.sharding.chunks import Chunk, ChunkHistory
from shardwright.sharding.namespace import Namespace
from shardwright.sharding.versions import ChunkVersion
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError
from tests.sharding.chunk_worlds import PATTERN, TIME, applied, bound, chunk, new_id, shape, span, version, whole

LOW, HIGH = MinKey(), MaxKey()
NOW = Timestamp(2000, 1)


def do_split(each: Chunk, points: list[object], at: ChunkVersion) -> ChunkChanges:
    return split(each, [bound(point) for point in points], pattern=PATTERN, collection_version=at, new_id=new_id)


def do_move(
    chunks: list[Chunk], low: object, high: object, donor: str, to: str, at: ChunkVersion, valid_after: Timestamp = NOW
) -> ChunkChanges:
    moved = span(low, high)
    current = next((each for each in chunks if each.range(PATTERN).contains(moved)), None)
    control = next((each for each in chunks if each.shard == donor and each is not current), None)
    migration = Migration(moved, at, donor, to, valid_after, Timestamp(valid_after.time - 300, 0))
    return move(migration, current, control=control, pattern=PATTERN, collection_version=at, new_id=new_id)


def code_and_message(action: Callable[[], object]) -> tuple[int, str]:
    with pytest.raises(CommandError) as caught:
        action()
    return caught.value.code, caught.value.message


def test_every_part_of_a_split_gets_a_new_minor() -> None:
    before = whole()
    chunks = applied([before], do_split(before, [0, 10, 20, 30], version(1, 0)))
    assert shape(chunks) == [(LOW, "s1", 1, 1), (0, "s1", 1, 2), (10, "s1", 1, 3), (20, "s1", 1, 4), (30, "s1", 1, 5)]
    assert chunks[0].id == before.id
    assert all(each.history == before.history and each.jumbo is False for each in chunks)
    assert len({each.id for each in chunks}) == 5


@pytest.mark.parametrize(
    ("points", "message"),
    [
        ([], "need to provide the split points"),
        ([5], "Split key { x: 5 } not contained within chunk [{ x: 10 }, { x: 20 })"),
        (
            [15, 12],
            "Split keys must be specified in strictly increasing order. Key { x: 12 } was specified after { x: 15 }.",
        ),
        ([15, 15], "Split on lower bound of chunk [{ x: 15 }, { x: 15 }] is not allowed"),
        ([10], "Split on lower bound of chunk [{ x: 10 }, { x: 10 }] is not allowed"),
        ([20], "Split on lower bound of chunk [{ x: 20 }, { x: 20 }] is not allowed"),
    ],
)
def test_split_points_that_are_refused(points: list[object], message: str) -> None:
    each = chunk(10, 20, "s1", 1, 0)
    assert code_and_message(lambda: do_split(each, points, version(1, 0))) == (72, message)


def split_world() -> list[Chunk]:
    return [
        chunk(LOW, 0, "s1", 1, 1),
        chunk(0, 10, "s1", 1, 2),
        chunk(10, 20, "s1", 1, 3),
        chunk(20, HIGH, "s1", 1, 4),
    ]


def test_merge_keeps_the_first_document_and_the_time_of_the_last_arrival() -> None:
    chunks = split_world()
    chunks[2] = replace(chunks[2], history=(ChunkHistory(NOW, "s1"), ChunkHistory(TIME, "s2")))
    changes = merge(
        chunks[1:3],
        span(0, 20),
        shard="s1",
        pattern=PATTERN,
        collection_version=version(1, 4),
    )
    after = applied(chunks, changes)
    assert shape(after) == [(LOW, "s1", 1, 1), (0, "s1", 1, 5), (20, "s1", 1, 4)]
    assert after[1].id == chunks[1].id
    assert after[1].history == (ChunkHistory(NOW, "s1"),)
    assert changes.deleted == (chunks[2],)


def test_bounds_that_shards_could_not_persist_are_refused() -> None:
    low, between, high = (letter * 6_000_000 for letter in "amz")
    changes: list[Callable[[], object]] = [
        lambda: do_split(chunk(low, HIGH, "s1", 1, 0), [high], version(1, 0)),
        lambda: do_move([chunk(low, HIGH, "s1", 1, 0)], high, HIGH, "s1", "s2", version(1, 0)),
        lambda: merge(
            [chunk(low, "b", "s1", 1, 0), chunk("b", high, "s1", 1, 1)],
            span(low, high),
            shard="s1",
            pattern=PATTERN,
            collection_version=version(1, 1),
        ),
    ]
    for change in changes:
        code, message = code_and_message(change)
        assert code == ErrorCode.BSONObjectTooLarge
        assert "have 180000" in message
    assert len(do_split(chunk(LOW, high, "s1", 1, 0), [between[:4_000_000]], version(1, 0)).written) == 2
    assert do_move(
        [chunk(low, high, "s1", 1, 0)], low, high, "s1", "s2", version(1, 0)
    ).written  # though it is too large


def test_merge_of_what_is_one_chunk_already_changes_nothing() -> None:
    only = split_world()[1:2]
    merged = merge(only, span(0, 10), shard="s1", pattern=PATTERN, collection_version=version(1, 4))
    assert merged == ChunkChanges()


@pytest.mark.parametrize(("low", "high", "shard"), [(0, 15, "s1"), (1, 20, "s1"), (0, 20, "s2")])
def test_merge_of_what_chunks_do_not_fill(low: object, high: object, shard: str) -> None:
    chunks = split_world()[1:3]
    code, message = code_and_message(
        lambda: merge(
            chunks,
            span(low, high),
            shard=shard,
            pattern=PATTERN,
            collection_version=version(1, 4),
        )
    )
    assert code == 20
    assert message.startswith(f"could not merge chunks, shard {shard} does not contain a sequence of chunks")


def test_move_of_a_whole_chunk_raises_a_control_chunk() -> None:
    chunks = split_world()
    after = applied(chunks, do_move(chunks, 0, 10, "s1", "s2", version(1, 4)))
    assert shape(after) == [(LOW, "s1", 2, 1), (0, "s2", 2, 0), (10, "s1", 1, 3), (20, "s1", 1, 4)]
    assert after[1].history == (ChunkHistory(NOW, "s2"), ChunkHistory(TIME, "s1"))
    assert after[1].id == chunks[1].id


def test_move_of_the_middle_of_a_chunk() -> None:
    chunks = split_world()
    after = applied(chunks, do_move(chunks, 3, 6, "s1", "s2", version(2, 1)))
    assert shape(after) == [
        (LOW, "s1", 3, 3),
        (0, "s1", 3, 1),
        (3, "s2", 3, 0),
        (6, "s1", 3, 2),
        (10, "s1", 1, 3),
        (20, "s1", 1, 4),
    ]
    assert after[2].id == chunks[1].id
    assert after[1].history == chunks[1].history


def test_move_of_head_and_tail_of_a_chunk() -> None:
    chunks = split_world()
    head = applied(chunks, do_move(chunks, 0, 5, "s1", "s2", version(3, 3)))
    assert shape(head)[:3] == [(LOW, "s1", 4, 2), (0, "s2", 4, 0), (5, "s1", 4, 1)]
    tail = applied(chunks, do_move(chunks, 30, HIGH, "s1", "s3", version(4, 2)))
    assert shape(tail)[-2:] == [(20, "s1", 5, 1), (30, "s3", 5, 0)]
    assert shape(tail)[0] == (LOW, "s1", 5, 2)


def test_move_of_the_last_chunk_of_a_donor() -> None:
    only = whole()
    assert shape(applied([only], do_move([only], LOW, HIGH, "s1", "s2", version(1, 0)))) == [(LOW, "s2", 2, 0)]


def test_a_move_that_was_committed_before_changes_nothing() -> None:
    assert do_move([whole("s2")], LOW, HIGH, "s1", "s2", version(1, 0)) == ChunkChanges()


def test_moves_that_are_refused() -> None:
    chunks = split_world()
    assert code_and_message(lambda: do_move(chunks, 0, 15, "s1", "s2", version(1, 4)))[0] == 40165
    assert code_and_message(lambda: do_move(chunks, 0, 10, "s3", "s2", version(1, 4)))[0] == 4914702
    assert code_and_message(lambda: do_move(chunks, 0, 10, "s1", "s2", version(1, 1)))[0] == 117
    assert code_and_message(lambda: do_move(chunks, 0, 10, "s1", "s2", version(1, 4), TIME))[0] == 105


def test_history_that_no_snapshot_needs_is_trimmed_but_for_its_newest() -> None:
    chunks = [whole()]
    for at in (Timestamp(2000, 1), Timestamp(2100, 1), Timestamp(9000, 1)):
        donor = chunks[0].shard
        chunks = applied(chunks, do_move(chunks, LOW, HIGH, donor, donor + "x", chunks[0].version, at))
    assert chunks[0].history == (
        ChunkHistory(Timestamp(9000, 1), "s1xxx"),
        ChunkHistory(Timestamp(2100, 1), "s1xx"),
    )


def test_history_within_the_window_is_kept_with_what_was_valid_when_it_began() -> None:
    chunks = [whole()]
    for at in (Timestamp(2000, 1), Timestamp(9000, 1), Timestamp(9010, 1)):
        donor = chunks[0].shard
        chunks = applied(chunks, do_move(chunks, LOW, HIGH, donor, donor + "x", chunks[0].version, at))
    assert [entry.valid_after.time for entry in chunks[0].history] == [9010, 9000, 2000]


def test_a_bump_shows_in_the_highest_chunk() -> None:
    assert shape(bump_minor(chunk(10, 20, "s2", 5, 5)).written) == [(10, "s2", 5, 6)]


def test_ensure_version_is_greater_than() -> None:
    each = chunk(3, 6, "s2", 3, 0)
    raised = ensure_version_is_greater_than(each, version(9, 0), collection_version=version(5, 7))
    assert shape(raised.written) == [(3, "s2", 6, 0)]
    assert ensure_version_is_greater_than(each, version(2, 0), collection_version=version(5, 7)) == ChunkChanges()
    assert ensure_version_is_greater_than(None, version(9, 0), collection_version=version(5, 7)) == ChunkChanges()


def test_clear_jumbo() -> None:
    each, namespace = chunk(3, 6, "s2", 6, 0), Namespace("d", "q1")

    def clear(found: Chunk | None) -> ChunkChanges:
        return clear_jumbo(found, span(3, 7), namespace=namespace, collection_version=version(6, 0))

    cleared = clear(replace(each, jumbo=True)).written
    assert shape(cleared) == [(3, "s2", 7, 0)]
    assert cleared[0].jumbo is None
    assert clear(each) == ChunkChanges()
    assert code_and_message(lambda: clear(None)) == (
        51262,
        "Unable to locate chunk [{ x: 3 }, { x: 7 }) from ns: d.q1",
    )


def test_collection_version_after_changes() -> None:
    chunks = split_world()
    changes = do_move(chunks, 3, 6, "s1", "s2", version(1, 4))
    assert changes.collection_version(version(1, 4)) == version(2, 3)
    assert ChunkChanges().collection_version(version(1, 4)) == version(1, 4)
