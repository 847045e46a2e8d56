"""The plan of a run; the seed chooses everything that is not given."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from tests.chaos.nemeses import NEEDS_MEMBERS, NEMESES
from tests.chaos.stage import Shape
from tests.chaos.workloads import WORKLOADS

WORKLOADS_PER_ROUND: Final = 4
NEMESES_PER_ROUND: Final = 3
"""In addition to the moves."""

ROUND_SECONDS: Final = 60.0


@dataclass(frozen=True)
class Plan:
    """A run: one cluster, and rounds of workloads and nemeses on it.

    Attributes:
        seed: determines everything that is not given.
        seconds: the total duration of the rounds, without their checks.
        workloads: each round takes some of them.
        nemeses: each round takes some of them.
        round_seconds: the maximum duration of one round.
    """

    seed: str
    seconds: float
    shape: Shape
    workloads: tuple[str, ...]
    nemeses: tuple[str, ...]
    round_seconds: float = ROUND_SECONDS

    @classmethod
    def choose(
        cls,
        seed: str,
        seconds: float,
        *,
        workloads: Sequence[str] = (),
        nemeses: Sequence[str] = (),
        members: int | None = None,
        round_seconds: float = ROUND_SECONDS,
    ) -> "Plan":
        """Return a plan with the given parts, otherwise all nemeses and all workloads; the seed chooses the members."""
        choice = random.Random(f"{seed}/plan")
        drawn = choice.choice([1, 3])
        members = drawn if members is None else members
        nemeses = tuple(nemeses) or tuple(kind for kind in NEMESES if members > 1 or kind not in NEEDS_MEMBERS)
        shape = Shape(members, members, has_links="links" in nemeses)
        workloads = tuple(workloads) or tuple(WORKLOADS)
        return cls(seed, seconds, shape, workloads, nemeses, round_seconds)

    def round(self, number: int) -> tuple[list[str], list[str]]:
        """The workloads and nemeses of one round. Moves take part whenever they are allowed."""
        choice = random.Random(f"{self.seed}/round/{number}")
        workloads = choice.sample(self.workloads, min(WORKLOADS_PER_ROUND, len(self.workloads)))
        others = [nemesis for nemesis in self.nemeses if nemesis != "moves"]
        nemeses = choice.sample(others, choice.randint(min(1, len(others)), min(NEMESES_PER_ROUND, len(others))))
        return workloads, [*(["moves"] if "moves" in self.nemeses else []), *nemeses]
