"""The summary of a run."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.nemeses import Nemesis
from tests.chaos.nemeses.kills import Kills
from tests.chaos.nemeses.moves import Moves
from tests.chaos.player import Player
from tests.chaos.stage import Shape


@dataclass
class Summary:
    """The numbers and findings of a run.

    Attributes:
        seconds: how long clients ran.
        rounds: the number of rounds.
        operations: the number of clients' operations with a reply, by workload.
        reads: how often clients read and checked everything, by workload and the kind of read.
        resent: how many commands clients had to send more than once.
        moves: the number of successful moves.
        failed_moves: the number of failed ones, by the error's name.
        faults: the number of faults of each kind, by nemesis.
        anomalies: the anomalies found.
        kept: where history and logs are; None after a run without anomalies.
    """

    seed: str
    shape: Shape
    seconds: float = 0.0
    rounds: int = 0
    operations: Counter[str] = field(default_factory=Counter)
    reads: dict[str, Counter[str]] = field(default_factory=dict)
    resent: int = 0
    moves: int = 0
    failed_moves: Counter[str] = field(default_factory=Counter)
    faults: dict[str, Counter[str]] = field(default_factory=dict)
    anomalies: list[str] = field(default_factory=list)
    kept: Path | None = None

    def add(self, players: Sequence[Player], nemeses: Sequence[Nemesis]) -> None:
        """Add the numbers of these threads in a round."""
        self.rounds += 1
        for player in players:
            self.operations[player.workload.name] += player.client.operations
            self.resent += player.client.resent
        for workload in {player.workload for player in players}:
            self.reads.setdefault(workload.name, Counter()).update(workload.reads)
        for nemesis in nemeses:
            self.faults.setdefault(nemesis.kind, Counter()).update(nemesis.counts)
            if isinstance(nemesis, Moves):
                self.moves += nemesis.moved
                self.failed_moves += nemesis.failed

    @property
    def killed(self) -> set[str]:
        """The kinds of processes that were killed."""
        faults = self.faults.get(Kills.kind, Counter())
        return {kind for fault in faults for kind in fault.removeprefix("kill ").split("+")}

    @property
    def _counted_reads(self) -> list[tuple[str, Counter[str]]]:
        return [(name, counts) for name, counts in sorted(self.reads.items()) if counts]

    def __str__(self) -> str:
        lines = [
            f"chaos, SEED={self.seed}: {self.seconds:.0f} s in {self.rounds} rounds, {self.shape.members} members",
            f"  operations  {self.operations.total()}: {_counted(self.operations)}; {self.resent} sent more than once",
            *(f"  reads       {counts.total()} of {name}: {_counted(counts)}" for name, counts in self._counted_reads),
            *(f"  {kind:<11} {counts.total()}: {_counted(counts)}" for kind, counts in sorted(self.faults.items())),
            f"  not moved   {self.failed_moves.total()}: {_counted(self.failed_moves)}",
            f"  anomalies   {len(self.anomalies)}",
            *(f"    {anomaly}" for anomaly in self.anomalies),
        ]
        return "\n".join([*lines, f"  kept in {self.kept}"] if self.kept else lines)


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"
