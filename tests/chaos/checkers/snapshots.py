"""Snapshots: a read sees a moment that has been.

One writer raises the links of a *chain* one after the other, each once the one before is acknowledged, round after
round. So at any moment the links up to some position have one value and all later links the value below it. A read that
mixes two moments breaks this pattern.
"""

from collections.abc import Sequence
from itertools import pairwise


def check_chain(found: Sequence[tuple[int, int]], length: int) -> list[str]:
    """What is wrong about one read of a chain.

    Args:
        found: position and value of each link that it showed, in any order.
        length: how many links there are.
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
    """A later read of the same session does not see an earlier moment."""
    earlier, later = dict(before), dict(after)
    back = sorted(position for position in earlier.keys() & later.keys() if later[position] < earlier[position])
    if not back:
        return []
    at = back[0]
    return [f"link {at} went back from {earlier[at]} to {later[at]} in one session"]
