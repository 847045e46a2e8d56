"""Whether operations on one object could have taken effect one after another, each between its start and its end.

The search is Wing and Gong's, with Lowe's memoization: a state that is reached again with the same operations done is
not searched twice. Operations without a reply may have taken effect at any time after their start, or not at all.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.chaos.operations import UNKNOWN, Operation

State = Hashable

Model = Callable[[State, Operation], Sequence[State]]
"""The states that may follow an operation in a given state; none if its reply is impossible there."""

RECENT: Final = 40
"""Number of operations to show of a history that cannot be reduced."""


@dataclass(frozen=True)
class Violation:
    """A history that no order explains.

    Attributes:
        initial: the states that the object may have been in before the first of `operations`.
        operations: the relevant operations, by their start.
    """

    initial: frozenset[State]
    operations: tuple[Operation, ...]

    def __str__(self) -> str:
        states = " or ".join(sorted(map(repr, self.initial)))
        shown = self.operations[-RECENT:]
        left_out = len(self.operations) - len(shown)
        head = f"not linearizable from {states}" + (f", {left_out} earlier operations left out" if left_out else "")
        return "\n      ".join([head, *map(str, shown)])


def check_linearizable(operations: Sequence[Operation], model: Model, initial: State) -> Violation | None:
    """None if the operations of one key are linearizable, otherwise the part of them that is not."""
    ordered = sorted(operations, key=lambda operation: operation.began)
    start = frozenset({initial})
    if is_linearizable(ordered, model, start):
        return None
    return _cut(ordered, model, start)


def is_linearizable(ordered: Sequence[Operation], model: Model, initial: frozenset[State]) -> bool:
    """Whether some order of the operations explains their replies, from one of these states."""
    return next(_final_states(ordered, model, initial), None) is not None


@dataclass(frozen=True)
class _Final:
    """The state after all operations that were answered."""

    state: State


def _final_states(ordered: Sequence[Operation], model: Model, initial: frozenset[State]) -> Iterator[_Final]:
    """Search depth first; yields each state in which all answered operations are done."""
    everything = sum(1 << index for index, operation in enumerate(ordered) if operation.is_known)
    stack: list[tuple[int, State]] = [(0, state) for state in initial]
    seen = set(stack)
    while stack:
        done, state = stack.pop()
        if done & everything == everything:
            yield _Final(state)
        for index in reversed(_next(ordered, done)):
            for after in model(state, ordered[index]):
                step = (done | 1 << index, after)
                if step not in seen:
                    seen.add(step)
                    stack.append(step)


def _next(ordered: Sequence[Operation], done: int) -> list[int]:
    """Return operations that may come next: no remaining one has ended before they began. Answered ones come first."""
    candidates: list[int] = []
    first_end = UNKNOWN
    # The lowest zero bit: everything before it is done.
    for index in range((~done & (done + 1)).bit_length() - 1, len(ordered)):
        if done >> index & 1:
            continue
        operation = ordered[index]
        if operation.began > first_end:
            break
        candidates.append(index)
        first_end = min(first_end, operation.ended)
    return sorted(candidates, key=lambda index: ordered[index].ended)


def _cut(ordered: list[Operation], model: Model, initial: frozenset[State]) -> Violation:
    """Remove operations irrelevant to the violation: those after it, those long before it, and unnecessary reads."""
    ordered = _shortest_prefix(ordered, model, initial)
    ordered, initial = _latest_start(ordered, model, initial)
    return Violation(initial, tuple(_without_reads(ordered, model, initial)))


def _shortest_prefix(ordered: list[Operation], model: Model, initial: frozenset[State]) -> list[Operation]:
    """Bisect: a history that is not linearizable remains so, whatever follows."""
    ends = sorted(operation.ended for operation in ordered if operation.is_known)
    low, high = 0, len(ends) - 1
    while low < high:
        middle = (low + high) // 2
        if is_linearizable(_until(ordered, ends[middle]), model, initial):
            low = middle + 1
        else:
            high = middle
    return _until(ordered, ends[low])


def _until(ordered: list[Operation], time: float) -> list[Operation]:
    """The history as known at a time: operations that had not ended by then have no reply."""
    return [
        operation if operation.ended <= time else replace(operation, ended=UNKNOWN, result=None)
        for operation in ordered
        if operation.began <= time
    ]


def _latest_start(
    ordered: list[Operation], model: Model, initial: frozenset[State]
) -> tuple[list[Operation], frozenset[State]]:
    """Start at the latest quiescent moment before a write from whose possible states the rest is impossible."""
    for index in reversed(range(1, len(ordered))):
        before, after = ordered[:index], ordered[index:]
        if all(operation.kind == "read" for operation in after):
            continue
        if max(operation.ended for operation in before) < after[0].began:
            states = frozenset(final.state for final in _final_states(before, model, initial))
            if states and not is_linearizable(after, model, states):
                return after, states
    return ordered, initial


def _without_reads(ordered: list[Operation], model: Model, initial: frozenset[State]) -> list[Operation]:
    """Remove reads one by one. Writes are kept: without them, other operations could become impossible."""
    kept = [operation for operation in ordered if operation.is_known or operation.kind != "read"]
    for operation in list(kept):
        if operation.kind == "read":
            fewer = [other for other in kept if other is not operation]
            if not is_linearizable(fewer, model, initial):
                kept = fewer
    return kept
