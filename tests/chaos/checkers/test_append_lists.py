"""The checker of append-lists: histories made by hand, each with one anomaly, and histories of a correct database."""

import random
from collections import defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.chaos.checkers.append_history import Append, Outcome, Read, Transaction
from tests.chaos.checkers.append_lists import check_append_lists

Final = dict[str, list[int]]


def r(key: str, *values: int) -> Read:
    return Read(key, values)


def a(key: str, value: int) -> Append:
    return Append(key, value)


def t(name: str, *steps: Read | Append, outcome: Outcome = Outcome.COMMITTED, is_snapshot: bool = True) -> Transaction:
    return Transaction(name, steps, outcome, is_snapshot)


WRONG: dict[str, tuple[list[Transaction], Final, str]] = {
    "lost append": ([t("T1", a("x", 1))], {"x": []}, "lost append"),
    "duplicate append in a read": ([t("T1", a("x", 1)), t("T2", r("x", 1, 1))], {"x": [1]}, "duplicate append"),
    "duplicate append at the end": ([t("T1", a("x", 1))], {"x": [1, 1]}, "duplicate append"),
    "garbage": ([t("T1", r("x", 7))], {"x": []}, "garbage read"),
    "half of an unknown transaction": (
        [t("T1", a("x", 1), a("y", 2), outcome=Outcome.UNKNOWN)],
        {"x": [1], "y": []},
        "half of a transaction",
    ),
    "effect of an aborted transaction": (
        [t("T1", a("x", 1), outcome=Outcome.ABORTED)],
        {"x": [1]},
        "aborted, but",
    ),
    "G1a": (
        [t("T1", a("x", 1), outcome=Outcome.ABORTED), t("T2", r("x", 1))],
        {"x": []},
        "G1a (aborted read)",
    ),
    "G1b": ([t("T1", a("x", 1), a("x", 2)), t("T2", r("x", 1))], {"x": [1, 2]}, "G1b (intermediate read)"),
    "own append is not read": ([t("T1", a("x", 1), r("x"))], {"x": [1]}, "internal"),
    "second read differs": (
        [t("T1", a("x", 1)), t("T2", r("x"), r("x", 1))],
        {"x": [1]},
        "internal",
    ),
    "second read lacks own append": ([t("T1", r("x"), a("x", 1), r("x"))], {"x": [1]}, "internal"),
    "incompatible order": (
        [t("T1", a("x", 1)), t("T2", a("x", 2)), t("T3", r("x", 2, 1))],
        {"x": [1, 2]},
        "incompatible order",
    ),
    "G0": (
        [t("T1", a("x", 1), a("y", 1)), t("T2", a("x", 2), a("y", 2))],
        {"x": [1, 2], "y": [2, 1]},
        "G0",
    ),
    "G1c": (
        [t("T1", a("x", 1), r("y", 1)), t("T2", a("y", 1), r("x", 1))],
        {"x": [1], "y": [1]},
        "G1c",
    ),
    "G1c of a read and a write": (
        [t("T1", a("x", 1), r("z", 1)), t("T2", a("x", 2), a("z", 1))],
        {"x": [1, 2], "z": [1]},
        "G1c",
    ),
    "read skew": (
        [t("T1", a("x", 1), a("y", 1)), t("T2", r("x"), r("y", 1))],
        {"x": [1], "y": [1]},
        "G-single (read skew)",
    ),
    "read skew by way of another transaction": (
        [t("T1", a("x", 1)), t("T2", r("x", 1), a("y", 1)), t("T3", r("x"), r("y", 1))],
        {"x": [1], "y": [1]},
        "G-single (read skew)",
    ),
    "lost update": (
        [t("T0", a("x", 0)), t("T1", r("x", 0), a("x", 1)), t("T2", r("x", 0), a("x", 2))],
        {"x": [0, 1, 2]},
        "lost update",
    ),
    "lost update of an empty list": (
        [t("T1", r("x"), a("x", 1)), t("T2", r("x"), a("x", 2))],
        {"x": [1, 2]},
        "lost update",
    ),
    "lost update without snapshots": (
        [t("T1", r("x"), a("x", 1), is_snapshot=False), t("T2", r("x"), a("x", 2), is_snapshot=False)],
        {"x": [1, 2]},
        "lost update",
    ),
    "long fork": (
        [t("T1", a("x", 1)), t("T2", a("y", 1)), t("T3", r("x", 1), r("y")), t("T4", r("x"), r("y", 1))],
        {"x": [1], "y": [1]},
        "G-nonadjacent",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_anomaly(name: str) -> None:
    transactions, final, anomaly = WRONG[name]
    for order in (transactions, transactions[::-1]):
        found = check_append_lists(order, final)
        assert any(each.startswith(anomaly) for each in found), found


RIGHT: dict[str, tuple[list[Transaction], Final]] = {
    "nothing": ([], {}),
    "write skew": (
        [t("T1", r("x"), r("y"), a("x", 1)), t("T2", r("x"), r("y"), a("y", 1))],
        {"x": [1], "y": [1]},
    ),
    "own appends": ([t("T1", a("x", 1), r("x", 1), a("x", 2), r("x", 1, 2), a("x", 3))], {"x": [1, 2, 3]}),
    "unknown without effect": ([t("T1", a("x", 1), outcome=Outcome.UNKNOWN)], {"x": []}),
    "unknown with effect": (
        [t("T1", a("x", 1), a("y", 1), outcome=Outcome.UNKNOWN), t("T2", r("x", 1))],
        {"x": [1], "y": [1]},
    ),
    "what an aborted transaction has read": (
        [t("T1", a("x", 1)), t("T2", r("x", 1, 1), r("y", 9), outcome=Outcome.ABORTED)],
        {"x": [1]},
    ),
    "read skew without snapshots": (
        [t("T1", a("x", 1), a("y", 1)), t("T2", r("x"), r("y", 1), is_snapshot=False)],
        {"x": [1], "y": [1]},
    ),
    "long fork of reads without snapshots": (
        [
            *(t("T1", a("x", 1)), t("T2", a("y", 1)), t("T3", r("x", 1), r("y"))),
            t("T4", r("x"), r("y", 1), is_snapshot=False),
        ],
        {"x": [1], "y": [1]},
    ),
}


@pytest.mark.parametrize("name", RIGHT)
def test_no_anomaly(name: str) -> None:
    transactions, final = RIGHT[name]
    assert check_append_lists(transactions, final) == []


class Database:
    """A database with snapshot isolation, as simple as possible.

    Attributes:
        is_checking: whether a commit fails if another transaction has appended to the same list since this one began.
    """

    def __init__(self, *, is_checking: bool = True) -> None:
        self.is_checking = is_checking
        self.lists: dict[str, list[int]] = defaultdict(list)
        self.transactions: list[Transaction] = []
        self._value = 0

    def run(self, choice: random.Random, transactions: int, concurrent: int) -> None:
        """Run transactions, some at a time on one snapshot."""
        for _ in range(transactions):
            before = {key: list(values) for key, values in self.lists.items()}
            for _ in range(choice.randint(1, concurrent)):
                self._run_one(choice, before)

    def _run_one(self, choice: random.Random, before: Final) -> None:
        steps: list[Read | Append] = []
        own: dict[str, list[int]] = defaultdict(list)
        for _ in range(choice.randint(1, 4)):
            key = choice.choice("xyz")
            if choice.random() < 0.5 and (self.is_checking or not own[key]):
                steps.append(Read(key, (*before.get(key, ()), *own[key])))
            else:
                self._value += 1
                own[key].append(self._value)
                steps.append(Append(key, self._value))
        is_conflict = any(self.lists[key] != before.get(key, []) for key, values in own.items() if values)
        is_aborted = choice.random() < 0.1 or (is_conflict and self.is_checking)
        outcome = Outcome.ABORTED if is_aborted else Outcome.COMMITTED
        if choice.random() < 0.2:
            outcome = Outcome.UNKNOWN
        self.transactions.append(Transaction(f"T{len(self.transactions)}", tuple(steps), outcome))
        if not is_aborted:
            for key, values in own.items():
                self.lists[key] += values


@given(st.randoms(use_true_random=False), st.integers(1, 20), st.integers(1, 4))
def test_a_correct_database_has_no_anomalies(choice: random.Random, transactions: int, concurrent: int) -> None:
    database = Database()
    database.run(choice, transactions, concurrent)
    assert check_append_lists(database.transactions, database.lists) == []


def test_a_database_that_does_not_check_for_conflicts_loses_updates() -> None:
    database = Database(is_checking=False)
    database.run(random.Random(1), 100, 3)
    found = check_append_lists(database.transactions, database.lists)
    assert any(anomaly.startswith("lost update") for anomaly in found), found


def test_a_long_history_is_checked() -> None:
    database = Database()
    database.run(random.Random(1), 1000, 2)
    assert check_append_lists(database.transactions, database.lists) == []
    skewed = Transaction("skewed", (Read("x", ()), Read("y", tuple(database.lists["y"]))))
    found = check_append_lists([*database.transactions, skewed], database.lists)
    assert [anomaly.partition(":")[0] for anomaly in found] in (["G-single (read skew)"], ["G-nonadjacent"])
