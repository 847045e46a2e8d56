"""The checker of counters."""

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checkers.counters import check_counters
from tests.chaos.operations import UNKNOWN, Operation

INCREMENTS = st.lists(st.tuples(st.integers(1, 5), st.sampled_from(["acknowledged", "executed", "not executed"])))


def increment(amount: int, *, is_known: bool = True, before: int | None = None) -> Operation:
    return Operation(0, "increment", "x", amount, before, 0.0, 1.0 if is_known else UNKNOWN)


@given(INCREMENTS)
def test_acknowledged_increments_and_some_of_the_others_are_accepted(drawn: list[tuple[int, str]]) -> None:
    history = [increment(amount, is_known=outcome == "acknowledged") for amount, outcome in drawn]
    total = sum(amount for amount, outcome in drawn if outcome != "not executed")
    assert check_counters({"x": history}, {"x": total}) == []


@given(INCREMENTS)
def test_less_than_acknowledged_or_more_than_sent_is_rejected(drawn: list[tuple[int, str]]) -> None:
    history = [increment(amount, is_known=outcome == "acknowledged") for amount, outcome in drawn]
    acknowledged = sum(amount for amount, outcome in drawn if outcome == "acknowledged")
    assert "lost" in check_counters({"x": history}, {"x": acknowledged - 1})[0]
    assert "twice" in check_counters({"x": history}, {"x": sum(amount for amount, _ in drawn) + 1})[0]


def test_a_counter_that_is_gone_has_lost_its_increments() -> None:
    assert check_counters({"x": [increment(1)]}, {}) != []


def test_no_two_increments_meet_the_same_value() -> None:
    history = [increment(1, before=0), increment(1, before=1)]
    assert check_counters({"x": history}, {"x": 2}) == []
    history = [increment(1, before=0), increment(1, before=0)]
    assert "more than once" in check_counters({"x": history}, {"x": 2})[0]
