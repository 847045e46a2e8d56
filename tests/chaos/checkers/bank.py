"""The bank: money is moved between accounts, but never made or lost.

Each transfer takes an amount from one account, adds it to another one, and writes itself into a ledger, all in one
transaction. So every consistent state has the total of the beginning, and balances that the ledger explains.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Transfer:
    """An entry of the ledger."""

    source: int
    target: int
    amount: int


def check_total(found: Collection[tuple[int, int]], accounts: int, initial: int) -> list[str]:
    """The anomalies of one read of all accounts.

    Args:
        found: number and balance of each account that it returned.
        accounts: how many there are.
        initial: the balance of each of them at the beginning.
    """
    times = Counter(number for number, _ in found)
    missing = sorted(set(range(accounts)) - times.keys())
    twice = sorted(number for number, count in times.items() if count > 1)
    if missing or twice:
        return [f"{len(found)} of {accounts} accounts, without {missing[:10]}, with {twice[:10]} twice"]
    anomalies = []
    overdrawn = sorted(number for number, balance in found if balance < 0)
    if overdrawn:
        anomalies.append(f"accounts {overdrawn[:10]} are overdrawn")
    total = sum(balance for _, balance in found)
    if total != accounts * initial:
        anomalies.append(f"the total is {total}, not {accounts * initial}")
    return anomalies


def check_ledger(found: Mapping[int, int], ledger: Mapping[str, Transfer], initial: int) -> list[str]:
    """Whether the transfers in the ledger explain all balances: otherwise one is half done.

    Args:
        found: the balance of each account.
        ledger: the transfers in the ledger, of the same time.
        initial: the balance of each account at the beginning.
    """
    expected = dict.fromkeys(found, initial)
    for transfer in ledger.values():
        expected[transfer.source] -= transfer.amount
        expected[transfer.target] += transfer.amount
    wrong = [number for number, balance in found.items() if balance != expected[number]]
    if not wrong:
        return []
    involved = [
        f"{name} {transfer}" for name, transfer in ledger.items() if wrong[0] in (transfer.source, transfer.target)
    ]
    return [
        f"a transfer is half done: {len(wrong)} accounts differ from the ledger, {wrong[0]} has {found[wrong[0]]}, not "
        f"{expected[wrong[0]]}: {involved}"
    ]


def check_outcomes(ledger: Collection[str], committed: Collection[str], aborted: Collection[str]) -> list[str]:
    """Whether the ledger has every transfer that was committed, and none that was aborted."""
    lost = sorted(set(committed).difference(ledger))
    undead = sorted(set(aborted).intersection(ledger))
    return [
        *([f"{len(lost)} committed transfers are lost: {lost[:10]}"] if lost else []),
        *([f"{len(undead)} aborted transfers took effect: {undead[:10]}"] if undead else []),
    ]
