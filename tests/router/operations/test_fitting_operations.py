"""Operations that do not fit into one document."""

from typing import Any

from shardwright.router.operations.local_operations import fitting


def test_operations_that_fit_are_shown_whole() -> None:
    operations: list[dict[str, Any]] = [{"opid": 1, "command": {"comment": "x" * 9_000_000}}, {"opid": 2}]
    assert fitting(operations) == operations


def test_of_those_that_do_not_fit_the_large_commands_are_truncated() -> None:
    large = {"find": "c", "comment": "x" * 9_000_000}
    operations: list[dict[str, Any]] = [
        {"opid": 1, "command": large},
        {"opid": 2, "command": {"ping": 1}},
        {"type": "idleCursor", "cursor": {"cursorId": 5, "originatingCommand": large}},
    ]
    first, second, cursor = fitting(operations)
    truncated = first["command"]["$truncated"]
    assert truncated.startswith('{ find: "c", comment: "xx')
    assert (len(truncated), truncated[-4:]) == (1000, "x...")
    assert second == operations[1]
    assert cursor == {"type": "idleCursor", "cursor": {"cursorId": 5, "originatingCommand": first["command"]}}
