"""Append-lists: what transactions read and appended is explained by snapshot isolation."""

from collections.abc import Mapping, Sequence

from tests.chaos.checkers.append_history import (
    Outcome,
    Read,
    Transaction,
    Writers,
    check_final,
    check_internal,
    check_reads,
    version_orders,
)
from tests.chaos.checkers.cycles import find_cycles, name_of
from tests.chaos.checkers.dependencies import dependencies, lost_updates, reads_of


def check_append_lists(transactions: Sequence[Transaction], final: Mapping[str, Sequence[int]]) -> list[str]:
    """The anomalies of a history; see `tests.chaos.checkers.append_history` for its meaning and its sources.

    Args:
        transactions: all transactions, also aborted ones and those with an unknown outcome.
        final: the lists after the last one.
    """
    writers = Writers.of(transactions)
    effective = [each for each in transactions if _is_effective(each, final)]
    anomalies = check_final(transactions, final, writers)
    for transaction in effective:
        anomalies += [*check_internal(transaction), *check_reads(transaction, writers)]
    last = [Read(key, tuple(values)) for key, values in final.items()]
    orders, contradictions = version_orders([*reads_of(effective), *last])
    anomalies += contradictions
    if anomalies:
        # Dependencies mean nothing where the order of the appends is not known.
        return anomalies
    edges = dependencies(effective, orders, writers)
    anomalies += [f"lost update: {edge}" for edge in lost_updates(edges, writers)]
    snapshots = {transaction.name: transaction.is_snapshot for transaction in transactions}
    for cycle in find_cycles(edges, lambda name: snapshots[name]):
        names = {edge.before for edge in cycle}
        involved = [transaction for transaction in effective if transaction.name in names]
        shown = "".join(f"\n      {line}" for line in (*cycle, *involved))
        anomalies.append(f"{name_of(cycle)}:{shown}")
    return anomalies


def _is_effective(transaction: Transaction, final: Mapping[str, Sequence[int]]) -> bool:
    """Whether it was certainly committed: its client knows that, or its appends are there."""
    if transaction.outcome is not Outcome.UNKNOWN:
        return transaction.outcome is Outcome.COMMITTED
    return any(append.value in final.get(append.key, ()) for append in transaction.appends())
