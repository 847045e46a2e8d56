"""Chunks whose moves have failed are tried again later and later."""

from uuid import UUID

from shardwright.configd.term.term import CHUNKS_MAX, FIRST_PAUSE_SECONDS, PAUSE_SECONDS_MAX, MoveBackoff

COLLECTION, OTHER = UUID(int=1), UUID(int=2)


def test_pauses_grow_until_a_move_succeeds() -> None:
    now = 0.0
    move_backoff = MoveBackoff(lambda: now)
    pause = FIRST_PAUSE_SECONDS
    for _ in range(20):
        move_backoff.failed(COLLECTION, b"low", "broken")
        assert move_backoff.errors(COLLECTION) == {b"low": "broken"}
        now += pause - 1
        assert move_backoff.lower_bounds(COLLECTION) == [b"low"]
        now += 1
        assert move_backoff.lower_bounds(COLLECTION) == []
        pause = min(2 * pause, PAUSE_SECONDS_MAX)
    move_backoff.moved(COLLECTION, b"low")
    move_backoff.failed(COLLECTION, b"low", "broken again")
    now += FIRST_PAUSE_SECONDS
    assert move_backoff.lower_bounds(COLLECTION) == []


def test_chunks_of_other_collections_are_not_held_back() -> None:
    move_backoff = MoveBackoff(lambda: 0.0)
    move_backoff.failed(COLLECTION, b"low", "broken")
    assert move_backoff.lower_bounds(OTHER) == []
    move_backoff.moved(OTHER, b"low")


def test_what_is_kept_in_mind_is_bounded() -> None:
    move_backoff = MoveBackoff(lambda: 0.0)
    for number in range(CHUNKS_MAX + 10):
        move_backoff.failed(COLLECTION, str(number).encode(), "broken")
    assert len(move_backoff.lower_bounds(COLLECTION)) == CHUNKS_MAX
    assert b"0" not in move_backoff.lower_bounds(COLLECTION)
