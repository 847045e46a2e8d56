"""Counters: every acknowledged increment counts once, and every unanswered one at most once."""

from collections import Counter
from collections.abc import Mapping, Sequence

from tests.chaos.operations import Operation


def check_counters(operations: Mapping[str, Sequence[Operation]], totals: Mapping[str, int]) -> list[str]:
    """Compare counters with their increments.

    Args:
        operations: the operations on each counter; the argument of ``increment`` is the amount, and its result, if it
            has one, is the value before it.
        totals: the final value of each counter, without counters that do not exist.
    """
    anomalies = []
    for key, history in operations.items():
        increments = [operation for operation in history if operation.kind == "increment"]
        least = sum(operation.argument for operation in increments if operation.is_known)
        most = sum(operation.argument for operation in increments)
        total = totals.get(key, 0)
        if not least <= total <= most:
            bounds = f"{least}" if least == most else f"{least} to {most}"
            what = "lost increments" if total < least else "counted increments twice"
            anomalies.append(f"counter {key} {what}: it is {total}, and {bounds} were acknowledged or may have been")
        befores = Counter(operation.result for operation in increments if operation.is_known)
        twice = sorted(before for before, times in befores.items() if before is not None and times > 1)
        if twice:
            shown = "\n      ".join(str(operation) for operation in increments if operation.result in twice[:3])
            anomalies.append(f"counter {key} had the values {twice[:10]} more than once:\n      {shown}")
    return anomalies
