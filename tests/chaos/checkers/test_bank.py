"""The checkers of the bank."""

from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checkers.bank import Transfer, check_ledger, check_outcomes, check_total

ACCOUNTS, INITIAL = 5, 100
TRANSFERS = st.lists(
    st.builds(Transfer, st.integers(0, ACCOUNTS - 1), st.integers(0, ACCOUNTS - 1), st.integers(1, 5)), max_size=10
)


def balances(transfers: list[Transfer]) -> dict[int, int]:
    found = dict.fromkeys(range(ACCOUNTS), INITIAL)
    for transfer in transfers:
        found[transfer.source] -= transfer.amount
        found[transfer.target] += transfer.amount
    return found


@given(TRANSFERS)
def test_whole_transfers_are_accepted(transfers: list[Transfer]) -> None:
    found = balances(transfers)
    ledger = {f"{number}": transfer for number, transfer in enumerate(transfers)}
    assert check_total(found.items(), ACCOUNTS, INITIAL) == []
    assert check_ledger(found, ledger, INITIAL) == []
    assert check_outcomes(ledger, list(ledger)[:3], ["other"]) == []


@given(TRANSFERS, st.integers(0, ACCOUNTS - 1))
def test_half_a_transfer_is_noticed(transfers: list[Transfer], account: int) -> None:
    found = balances(transfers)
    ledger = {f"{number}": transfer for number, transfer in enumerate(transfers)}
    half = {**found, account: found[account] + 1}
    assert "the total is 501, not 500" in check_total(half.items(), ACCOUNTS, INITIAL)[0]
    assert "half done" in check_ledger(half, ledger, INITIAL)[0]


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
    assert "lost" in check_outcomes(["a"], ["a", "b"], [])[0]
    assert "took effect" in check_outcomes(["a"], [], ["a"])[0]
