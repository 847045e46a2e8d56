"""The faults in a run: one file for each kind of fault, and one for the moves."""

from typing import Final

from tests.chaos.nemeses.base import Nemesis, Scene
from tests.chaos.nemeses.comebacks import Comebacks
from tests.chaos.nemeses.elections import Elections
from tests.chaos.nemeses.hosts import Hosts
from tests.chaos.nemeses.kills import Kills
from tests.chaos.nemeses.links import LinkFaults
from tests.chaos.nemeses.moves import Moves
from tests.chaos.nemeses.pauses import Pauses

NEMESES: Final[dict[str, type[Nemesis]]] = {
    nemesis.kind: nemesis for nemesis in (Moves, Kills, Pauses, Elections, LinkFaults, Comebacks, Hosts)
}
"""All nemeses, by kind."""

NEEDS_MEMBERS: Final = frozenset({Elections.kind, Comebacks.kind, Hosts.kind})
"""Nemeses that do nothing to sets of one member, where no other member can be elected."""

__all__ = ["NEEDS_MEMBERS", "NEMESES", "Nemesis", "Scene"]
