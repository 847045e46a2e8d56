"""Registers: documents with a value that is read and replaced."""

from collections.abc import Mapping, Sequence

from tests.chaos.checkers.linearizability import State, check_linearizable
from tests.chaos.operations import Operation


def register_model(state: State, operation: Operation) -> Sequence[State]:
    """``read`` answers the value, ``write`` sets it, and ``exchange`` sets it and answers the one before."""
    if operation.kind == "write":
        return [operation.argument]
    is_possible = not operation.is_known or operation.result == state
    if operation.kind == "exchange":
        return [operation.argument] if is_possible else []
    assert operation.kind == "read", operation
    return [state] if is_possible else []


def check_registers(operations: Mapping[str, Sequence[Operation]], initial: State) -> list[str]:
    """Every register is linearizable. Writes give each register values that none of its other writes does."""
    anomalies = []
    for key, history in operations.items():
        violation = check_linearizable(_without_unseen(history), register_model, initial)
        if violation is not None:
            anomalies.append(f"register {key}: {violation}")
    return anomalies


def _without_unseen(operations: Sequence[Operation]) -> list[Operation]:
    """Without unanswered operations of which nobody saw anything: they explain nothing, and the search takes long."""
    seen = {operation.result for operation in operations if operation.is_known and operation.kind != "write"}
    return [operation for operation in operations if operation.is_known or operation.argument in seen]
