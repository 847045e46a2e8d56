"""Chunks whose moves have failed are tried again later and later."""

from uuid import UUID

from shardwright.configd.primary.held_back import CHUNKS_MAX, FIRST_PAUSE_SECONDS, PAUSE_SECONDS_MAX, HeldBack

COLLECTION, OTHER = UUID(int=1), UUID(int=2)


def test_pauses_grow_until_a_move_succeeds() -> None:
    now = 0.0
    held_back = HeldBack(lambda: now)
    pause = FIRST_PAUSE_SECONDS
    for _ in range(20):
        held_back.failed(COLLECTION, b"low", "broken")
        assert held_back.errors(COLLECTION) == {b"low": "broken"}
        now += pause - 1
        assert held_back.lower_bounds(COLLECTION) == [b"low"]
        now += 1
        assert held_back.lower_bounds(COLLECTION) == []
        pause = min(2 * pause, PAUSE_SECONDS_MAX)
    held_back.moved(COLLECTION, b"low")
    held_back.failed(COLLECTION, b"low", "broken again")
    now += FIRST_PAUSE_SECONDS
    assert held_back.lower_bounds(COLLECTION) == []


def test_chunks_of_other_collections_are_not_held_back() -> None:
    held_back = HeldBack(lambda: 0.0)
    held_back.failed(COLLECTION, b"low", "broken")
    assert held_back.lower_bounds(OTHER) == []
    held_back.moved(OTHER, b"low")


def test_what_is_kept_in_mind_is_bounded() -> None:
    held_back = HeldBack(lambda: 0.0)
    for number in range(CHUNKS_MAX + 10):
        held_back.failed(COLLECTION, str(number).encode(), "broken")
    assert len(held_back.lower_bounds(COLLECTION)) == CHUNKS_MAX
    assert b"0" not in held_back.lower_bounds(COLLECTION)
