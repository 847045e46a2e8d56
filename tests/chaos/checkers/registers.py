"""Registers: documents whose value is read and replaced."""

from collections.abc import Mapping, Sequence

from tests.chaos.checkers.linearizability import State, check_linearizable
from tests.chaos.operations import Operation


def register_model(state: State, operation: Operation) -> Sequence[State]:
    """``read`` returns the value, ``write`` sets it, and ``exchange`` sets it and returns the previous one."""
    if operation.kind == "write":
        return [operation.argument]
    is_possible = not operation.is_known or operation.result == state
    if operation.kind == "exchange":
        return [operation.argument] if is_possible else []
    assert operation.kind == "read", operation
    return [state] if is_possible else []


def check_registers(operations: Mapping[str, Sequence[Operation]], initial: State) -> list[str]:
    """Check that every register is linearizable. Each write to a register must have a different value."""
    anomalies = []
    for key, history in operations.items():
        violation = check_linearizable(_without_unseen(history), register_model, initial)
        if violation is not None:
            anomalies.append(f"register {key}: {violation}")
    return anomalies


def _without_unseen(operations: Sequence[Operation]) -> list[Operation]:
    """Remove unanswered operations whose values were never read: they explain nothing and slow the search down."""
    seen = {operation.result for operation in operations if operation.is_known and operation.kind != "write"}
    return [operation for operation in operations if operation.is_known or operation.argument in seen]
