"""The checkers of the bank."""

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checkers.bank import Transfer, changes_by, check_ledger, check_outcomes, check_total

ACCOUNTS, INITIAL = 5, 100
TRANSFERS = st.lists(
    st.builds(Transfer, st.integers(0, ACCOUNTS - 1), st.integers(0, ACCOUNTS - 1), st.integers(1, 5)), max_size=10
)


def balances(transfers: list[Transfer]) -> dict[int, int]:
    changes = changes_by(transfers)
    return {number: INITIAL + changes.get(number, 0) for number in range(ACCOUNTS)}


@given(TRANSFERS)
def test_whole_transfers_are_accepted(transfers: list[Transfer]) -> None:
    found = balances(transfers)
    assert check_total(found.items(), ACCOUNTS, INITIAL) == []
    assert check_ledger(found, changes_by(transfers), INITIAL) == []


@given(TRANSFERS, st.integers(0, ACCOUNTS - 1))
def test_half_a_transfer_is_noticed(transfers: list[Transfer], account: int) -> None:
    found = balances(transfers)
    half = {**found, account: found[account] + 1}
    assert "the total is 501, not 500" in check_total(half.items(), ACCOUNTS, INITIAL)[0]
    assert "half done" in check_ledger(half, changes_by(transfers), INITIAL)[0]


def test_a_transfer_that_the_ledger_does_not_have_is_noticed() -> None:
    found = balances([Transfer(0, 1, 5)])
    assert check_total(found.items(), ACCOUNTS, INITIAL) == []
    assert "half done" in check_ledger(found, {}, INITIAL)[0]


def test_accounts_that_are_missing_or_there_twice_are_noticed() -> None:
    found = [*balances([]).items()]
    assert "without [4]" in check_total(found[:-1], ACCOUNTS, INITIAL)[0]
    assert "with [0] twice" in check_total([*found, found[0]], ACCOUNTS, INITIAL)[0]


def test_overdrawn_accounts_are_noticed() -> None:
    found = balances([Transfer(0, 1, INITIAL + 1)])
    assert "overdrawn" in check_total(found.items(), ACCOUNTS, INITIAL)[0]


def test_outcomes_bind() -> None:
    assert check_outcomes(["a", "b"], ["a"], ["c"]) == []
    assert "lost" in check_outcomes(["a"], ["a", "b"], [])[0]
    assert "took effect" in check_outcomes(["a"], [], ["a"])[0]
