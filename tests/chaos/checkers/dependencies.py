"""The dependencies between transactions that a history of append-lists shows (Elle, section 4)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise

from tests.chaos.checkers.append_history import Read, Transaction, Writers, foreign_reads


class Kind(Enum):
    """The reason why the second of two transactions comes after the first."""

    WRITE = "ww"
    """It appended directly after the other's append."""
    READ = "wr"
    """It read the other's append as the last one."""
    ANTI = "rw"
    """It appended what the other did not see yet."""


@dataclass(frozen=True)
class Dependency:
    """The transaction ``after`` depends on ``before``, because of one list."""

    before: str
    after: str
    kind: Kind
    key: str

    def __str__(self) -> str:
        return f"{self.before} -{self.kind.value}({self.key})-> {self.after}"


def dependencies(
    transactions: Iterable[Transaction], orders: Mapping[str, Sequence[int]], writers: Writers
) -> list[Dependency]:
    """Return all dependencies between different transactions.

    Args:
        transactions: the certainly committed ones.
        orders: the order of the appends to each list.
        writers: of all values in the orders.
    """
    found: dict[Dependency, None] = {}

    def add(before: Transaction, after: Transaction, kind: Kind, key: str) -> None:
        if before.name != after.name:
            found[Dependency(before.name, after.name, kind, key)] = None

    for key, order in orders.items():
        for first, second in pairwise(order):
            add(writers.by_value[key, first], writers.by_value[key, second], Kind.WRITE, key)
    for transaction in transactions:
        for read in foreign_reads(transaction):
            if read.values:
                add(writers.by_value[read.key, read.values[-1]], transaction, Kind.READ, read.key)
            unseen = orders.get(read.key, ())[len(read.values) :]
            if unseen:
                add(transaction, writers.by_value[read.key, unseen[0]], Kind.ANTI, read.key)
    return list(found)


def lost_updates(edges: Iterable[Dependency], writers: Writers) -> list[Dependency]:
    """Return the edges of lost updates: another transaction appended to a list between a read and an append of one."""
    return [edge for edge in edges if edge.kind is Kind.ANTI and (edge.before, edge.key) in writers.last]


def reads_of(transactions: Iterable[Transaction]) -> list[Read]:
    """All reads of some transactions."""
    return [read for transaction in transactions for read in transaction.reads()]
