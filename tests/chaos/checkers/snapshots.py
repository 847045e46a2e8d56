"""Snapshots: a read sees a state that existed.

One writer increments the links of a *chain* one after another, each after the previous one is acknowledged, round after
round. So at any time the links up to some position have one value and all later links the value below it. A read that
mixes two states breaks this pattern.
"""

from collections.abc import Sequence
from itertools import pairwise


def check_chain(found: Sequence[tuple[int, int]], length: int) -> list[str]:
    """The anomalies of one read of a chain.

    Args:
        found: position and value of each link that it returned, in any order.
        length: the number of links.
    """
    positions = sorted(position for position, _ in found)
    if positions != list(range(length)):
        missing = sorted(set(range(length)) - set(positions))
        twice = sorted({before for before, after in pairwise(positions) if before == after})
        return [f"a snapshot shows {len(found)} of {length} links, without {missing[:10]}, with {twice[:10]} twice"]
    values = [value for _, value in sorted(found)]
    rises = [position for position, (before, after) in enumerate(pairwise(values)) if after > before]
    if rises:
        at = rises[0]
        return [f"a snapshot shows link {at + 1} at {values[at + 1]}, though link {at} before it is at {values[at]}"]
    if values[0] - values[-1] > 1:
        return [f"a snapshot shows the first link at {values[0]} and the last at {values[-1]}"]
    return []


def check_advance(before: Sequence[tuple[int, int]], after: Sequence[tuple[int, int]]) -> list[str]:
    """Check that a later read in the same session does not see an earlier state."""
    earlier, later = dict(before), dict(after)
    back = sorted(position for position in earlier.keys() & later.keys() if later[position] < earlier[position])
    if not back:
        return []
    at = back[0]
    return [f"link {at} went back from {earlier[at]} to {later[at]} in one session"]
