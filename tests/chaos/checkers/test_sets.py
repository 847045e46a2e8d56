"""The checker of sets."""

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checkers.sets import check_set
from tests.chaos.operations import UNKNOWN, Operation

TIMES = st.integers(0, 20)


def change(kind: str, element: str, began: float, ended: float = UNKNOWN) -> Operation:
    return Operation(0, kind, "set", element, None, began, ended)


def read(found: list[str], began: float, ended: float) -> Operation:
    return Operation(1, "read", "set", None, found, began, ended)


@st.composite
def histories(draw: st.DrawFn) -> list[Operation]:
    """Elements that existed between two times, and reads that saw each element at some time during the read."""
    history, lives = [], {}
    for number in range(draw(st.integers(0, 6))):
        element, added = f"e{number}", draw(TIMES)
        removed = draw(st.integers(added + 1, 30) | st.just(None))
        lives[element] = (added, UNKNOWN if removed is None else removed)
        for kind, at in [("add", added), ("remove", removed)]:
            if at is not None:
                history.append(change(kind, element, at - draw(TIMES) / 50, draw(st.just(at + 0.4) | st.just(UNKNOWN))))
    for _ in range(draw(st.integers(0, 4))):
        began = draw(TIMES)
        ended = began + draw(TIMES)
        seen = {element: draw(st.integers(began, ended)) + 0.5 for element in lives}
        found = [element for element, (added, removed) in lives.items() if added < seen[element] < removed]
        history.append(read(found, began + 0.5, ended + 0.5))
    return history


@given(histories())
def test_what_could_be_seen_is_accepted(history: list[Operation]) -> None:
    assert check_set(history) == []


def test_what_cannot_have_been_seen_is_rejected() -> None:
    history = [change("add", "a", 0, 1), change("add", "b", 0, 1), change("remove", "b", 2, 3)]
    assert check_set([*history, read(["a"], 4, 5)]) == []
    for found, what in [
        ([], "lost"),
        (["a", "a"], "duplicated"),
        (["a", "b"], "resurrected"),
        (["a", "c"], "never added"),
    ]:
        (anomaly,) = check_set([*history, read(found, 4, 5)])
        assert anomaly.startswith(what)


def test_what_nobody_answered_may_be_seen_either_way() -> None:
    history = [change("add", "a", 0), change("add", "b", 0, 1), change("remove", "b", 2)]
    for found in ([], ["a"], ["b"], ["a", "b"]):
        assert check_set([*history, read(found, 5, 6)]) == []


def test_a_clear_removes_what_was_added_before_it() -> None:
    history = [change("add", "a", 0, 1), change("add", "b", 3, 6), change("clear", "", 4, 5), change("add", "c", 7, 8)]
    for found in (["c"], ["b", "c"]):
        assert check_set([*history, read(found, 9, 10)]) == []
    assert "resurrected" in check_set([*history, read(["a", "c"], 9, 10)])[0]
    assert "lost" in check_set([*history, read(["b"], 9, 10)])[0]
    # It is unknown whether and when an unanswered clear took effect.
    assert check_set([*history, change("clear", "", 8.5), read([], 9, 10)]) == []
