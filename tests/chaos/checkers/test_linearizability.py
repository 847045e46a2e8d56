"""The checker of registers: histories made from an order are accepted, histories that no order explains are not."""

from collections.abc import Hashable, Sequence
from dataclasses import replace
from itertools import combinations, permutations

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checkers.linearizability import check_linearizable
from tests.chaos.checkers.registers import check_registers, register_model
from tests.chaos.operations import UNKNOWN, Operation

KINDS = st.sampled_from(["read", "write", "exchange"])


def operation(kind: str, value: int | None, began: float, ended: float, result: int | None = None) -> Operation:
    return Operation(0, kind, "x", value, result, began, ended)


@st.composite
def linearizable(draw: st.DrawFn) -> list[Operation]:
    """Operations that took effect one per second, each answered after a while or never."""
    state, history = 0, []
    for at, kind in enumerate(draw(st.lists(KINDS, max_size=14)), 1):
        before, state = state, state if kind == "read" else at
        began = at - draw(st.floats(0, 3))
        ended = draw(st.floats(at, at + 3) | st.just(UNKNOWN))
        result = before if kind != "write" else None
        history.append(operation(kind, None if kind == "read" else at, began, ended, result))
    return draw(st.permutations(history))


@st.composite
def any_history(draw: st.DrawFn) -> list[Operation]:
    """A few operations with arbitrary replies."""
    history = []
    for value, kind in enumerate(draw(st.lists(KINDS, max_size=5)), 1):
        began = draw(st.integers(0, 8))
        ended = draw(st.integers(began + 1, 10) | st.just(UNKNOWN))
        history.append(operation(kind, value, began, ended, draw(st.integers(0, 5))))
    return history


@given(linearizable())
def test_what_happened_in_some_order_is_accepted(history: list[Operation]) -> None:
    assert check_linearizable(history, register_model, 0) is None
    assert check_registers({"x": history}, 0) == []


@given(linearizable(), st.data())
def test_a_value_that_was_never_written_is_rejected(history: list[Operation], data: st.DataObject) -> None:
    known = [index for index, each in enumerate(history) if each.is_known and each.kind != "write"]
    if known:
        index = data.draw(st.sampled_from(known))
        history[index] = replace(history[index], result=1000)
        assert check_registers({"x": history}, 0)


@given(linearizable(), st.integers(1, 5))
def test_a_stale_read_is_rejected(history: list[Operation], later: int) -> None:
    end = max((each.ended for each in history if each.is_known), default=0.0)
    # The write is answered before the read begins, and nothing wrote the old value after it.
    history = [
        *(each for each in history if each.is_known),
        operation("write", 100, end + 1, end + 2),
        operation("read", None, end + 2 + later, end + 3 + later, result=99),
    ]
    assert check_linearizable(history, register_model, 0) is not None


@given(any_history())
def test_the_search_agrees_with_trying_all_orders(history: list[Operation]) -> None:
    expected = is_linearizable_by_trying(history)
    assert (check_linearizable(history, register_model, 0) is None) == expected
    assert (check_registers({"x": history}, 0) == []) == expected


@given(any_history())
def test_what_is_left_of_a_violation_is_still_one(history: list[Operation]) -> None:
    violation = check_linearizable(history, register_model, 0)
    if violation is not None:
        assert len(violation.operations) <= len(history)
        assert not any(is_linearizable_by_trying(violation.operations, state) for state in violation.initial)


def test_a_violation_is_cut_to_what_matters() -> None:
    """A lost write after many correct operations."""
    history = [operation("write", value, value, value + 0.5) for value in range(1, 300)]
    history += [operation("read", None, value + 0.6, value + 0.7, result=value) for value in range(1, 299)]
    history += [operation("read", None, 400, 401, result=298), operation("write", 500, 500, 501)]
    violation = check_linearizable(history, register_model, 0)
    assert violation is not None
    assert violation.initial == {298}
    assert [(each.kind, each.argument, each.result) for each in violation.operations] == [
        ("write", 299, None),
        ("read", None, 298),
    ]


def test_an_unanswered_write_may_take_effect_late_and_only_once() -> None:
    lost = operation("write", 1, 0, UNKNOWN)
    reads = [operation("read", None, at, at + 1, result=value) for at, value in [(2, 0), (4, 0), (6, 1)]]
    assert check_registers({"x": [lost, *reads]}, 0) == []
    back = operation("read", None, 8, 9, result=0)
    assert check_registers({"x": [lost, *reads, back]}, 0)


def is_linearizable_by_trying(history: Sequence[Operation], initial: Hashable = 0) -> bool:
    known = [each for each in history if each.is_known]
    unknown = [each for each in history if not each.is_known]
    return any(
        is_explained_by(order, initial)
        for count in range(len(unknown) + 1)
        for some in combinations(unknown, count)
        for order in permutations([*known, *some])
    )


def is_explained_by(order: Sequence[Operation], initial: Hashable) -> bool:
    if any(after.ended < before.began for before, after in combinations(order, 2)):
        return False
    state = initial
    for each in order:
        states = register_model(state, each)
        if not states:
            return False
        (state,) = states
    return True
