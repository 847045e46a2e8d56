"""Histories of transactions that read lists and append to them, and the anomalies that single reads reveal.

Every value is appended at most once, so a list shows the order in which its appends were committed, and a read shows
exactly which of them its transaction saw. The anomalies have their names from Adya's thesis (*Weak Consistency*, 1999)
and from K. Kingsbury and P. Alvaro, *Elle: Inferring Isolation Anomalies from Experimental Observations* (PVLDB 14 (3),
2020), whose inference from lists these checkers follow.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum


class Outcome(Enum):
    """The end of a transaction, as far as its client knows."""

    COMMITTED = "committed"
    ABORTED = "aborted"
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class Read:
    """A read of one list, and the values that it returned."""

    key: str
    values: tuple[int, ...]


@dataclass(frozen=True)
class Append:
    """An append of one value to one list."""

    key: str
    value: int


@dataclass(frozen=True)
class Transaction:
    """One transaction.

    Attributes:
        name: unique, for messages.
        steps: its reads and appends in order.
        is_snapshot: whether all of its reads are promised to be of one time, on all shards.
    """

    name: str
    steps: tuple[Read | Append, ...]
    outcome: Outcome = Outcome.COMMITTED
    is_snapshot: bool = True

    def reads(self) -> Iterator[Read]:
        """Its reads."""
        return (step for step in self.steps if isinstance(step, Read))

    def appends(self) -> Iterator[Append]:
        """Its appends."""
        return (step for step in self.steps if isinstance(step, Append))

    def __str__(self) -> str:
        steps = ", ".join(
            f"append {step.value} to {step.key}" if isinstance(step, Append) else f"read {step.key} = {[*step.values]}"
            for step in self.steps
        )
        return f"{self.name} ({self.outcome.value}{', snapshot' if self.is_snapshot else ''}): {steps}"


@dataclass(frozen=True)
class Writers:
    """The writers of all values.

    Attributes:
        by_value: the transaction of each value of each key.
        last: the last value that a transaction appended to a key, by transaction's name and key.
    """

    by_value: Mapping[tuple[str, int], Transaction]
    last: Mapping[tuple[str, str], int]

    @classmethod
    def of(cls, transactions: Iterable[Transaction]) -> "Writers":
        """The writers of a history."""
        by_value: dict[tuple[str, int], Transaction] = {}
        last: dict[tuple[str, str], int] = {}
        for transaction in transactions:
            for append in transaction.appends():
                assert (append.key, append.value) not in by_value, f"the test appends {append} twice"
                by_value[append.key, append.value] = transaction
                last[transaction.name, append.key] = append.value
        return cls(by_value, last)


def check_internal(transaction: Transaction) -> list[str]:
    """Whether a transaction sees its own appends, and nothing new from others after its first read of a list."""
    anomalies = []
    known: dict[str, list[int]] = {}
    unread: dict[str, list[int]] = {}
    for step in transaction.steps:
        if isinstance(step, Append):
            (known if step.key in known else unread).setdefault(step.key, []).append(step.value)
            continue
        own, seen = unread.pop(step.key, []), [*step.values]
        if seen != known.get(step.key, seen) or seen[len(seen) - len(own) :] != own:
            anomalies.append(f"internal: {transaction} does not read its own list {step.key}")
        known[step.key] = seen
    return anomalies


def foreign_reads(transaction: Transaction) -> Iterator[Read]:
    """Yield the first read of each list, unless the transaction had appended to the list before."""
    touched: set[str] = set()
    for step in transaction.steps:
        if isinstance(step, Read) and step.key not in touched:
            yield step
        touched.add(step.key)


def check_reads(transaction: Transaction, writers: Writers) -> list[str]:
    """The anomalies that each of its reads shows by itself: duplicates, garbage, aborted and intermediate reads."""
    anomalies = []
    for read in transaction.reads():
        twice = [value for value, times in Counter(read.values).items() if times > 1]
        if twice:
            anomalies.append(f"duplicate append of {twice} in {transaction}")
        for value in read.values:
            writer = writers.by_value.get((read.key, value))
            if writer is None:
                anomalies.append(f"garbage read of {value} in {transaction}")
            elif writer.outcome is Outcome.ABORTED:
                anomalies.append(f"G1a (aborted read) of {value} in {transaction}, from {writer}")
    for read in foreign_reads(transaction):
        if not read.values:
            continue
        writer = writers.by_value.get((read.key, read.values[-1]))
        if writer is not None and writers.last[writer.name, read.key] != read.values[-1]:
            anomalies.append(f"G1b (intermediate read) of {read.values[-1]} in {transaction}, from {writer}")
    return anomalies


def version_orders(reads: Iterable[Read]) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    """The order of the appends to each list, as its longest read shows it, and reads that contradict it."""
    longest: dict[str, tuple[int, ...]] = {}
    found = list(reads)
    for read in found:
        if len(read.values) > len(longest.get(read.key, ())):
            longest[read.key] = read.values
    wrong = [read for read in found if longest.get(read.key, ())[: len(read.values)] != read.values]
    return longest, [f"incompatible order: {[*read.values]} and {[*longest[read.key]]} of {read.key}" for read in wrong]


def check_final(transactions: Iterable[Transaction], final: Mapping[str, Sequence[int]], writers: Writers) -> list[str]:
    """Whether the lists at the end have each committed append, and either all or none of an unknown transaction."""
    anomalies = []
    for transaction in transactions:
        appends = list(transaction.appends())
        lost = [append for append in appends if append.value not in final.get(append.key, ())]
        if transaction.outcome is Outcome.COMMITTED and lost:
            anomalies.append(f"lost append: {lost} of {transaction}")
        elif transaction.outcome is Outcome.UNKNOWN and lost and len(lost) < len(appends):
            anomalies.append(f"half of a transaction: without {lost} of {transaction}")
        elif transaction.outcome is Outcome.ABORTED and len(lost) < len(appends):
            anomalies.append(f"aborted, but not without effect: {transaction}")
    for key, values in final.items():
        twice = [value for value, times in Counter(values).items() if times > 1]
        if twice:
            anomalies.append(f"duplicate append of {twice} in the last state of {key}")
        anomalies += [f"garbage {value} in {key}" for value in values if (key, value) not in writers.by_value]
    return anomalies
