"""The bank: money is moved between accounts, but never made or lost.

Each transfer takes an amount from one account, adds it to another one, and writes itself into a ledger, all in one
transaction. So every consistent state has the total of the beginning, and balances that the ledger explains.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
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


def check_ledger(found: Mapping[int, int], changes: Mapping[int, int], initial: int) -> list[str]:
    """Whether the transfers in the ledger explain all balances: otherwise one is half done.

    Args:
        found: the balance of each account.
        changes: the sum of the transfers to each account, and from it, in the ledger of the same time.
        initial: the balance of each account at the beginning.
    """
    wrong = {
        number: (balance, initial + changes.get(number, 0))
        for number, balance in found.items()
        if balance != initial + changes.get(number, 0)
    }
    if not wrong:
        return []
    shown = ", ".join(f"{number} has {has}, not {should}" for number, (has, should) in list(wrong.items())[:10])
    return [f"a transfer is half done: {len(wrong)} accounts differ from the ledger: {shown}"]


def changes_by(transfers: Iterable[Transfer]) -> dict[int, int]:
    """The sum of the transfers to each account, and from it."""
    changes: Counter[int] = Counter()
    for transfer in transfers:
        changes[transfer.source] -= transfer.amount
        changes[transfer.target] += transfer.amount
    return dict(changes)


def check_outcomes(ledger: Collection[str], committed: Collection[str], aborted: Collection[str]) -> list[str]:
    """Whether the ledger has every transfer that was committed, and none that was aborted."""
    lost = sorted(set(committed).difference(ledger))
    undead = sorted(set(aborted).intersection(ledger))
    return [
        *([f"{len(lost)} committed transfers are lost: {lost[:10]}"] if lost else []),
        *([f"{len(undead)} aborted transfers took effect: {undead[:10]}"] if undead else []),
    ]
