"""The ways to commit a transaction, chosen by how many participants there are and how many of them have written."""

from dataclasses import dataclass
from enum import Enum


class CommitPath(Enum):
    """A way to commit, with MongoDB's name for it (``commitType``)."""

    NO_SHARDS = "noShards"
    """Nothing was sent to any shard, and nothing is."""

    ONE_SHARD = "singleShard"
    """The only participant commits."""

    READ_ONLY = "readOnly"
    """Each participant commits; none has written."""

    ONE_WRITER = "singleWriteShard"
    """The readers commit, then the only participant that has written: a failure before that aborts all."""

    TWO_PHASES = "twoPhaseCommit"
    """The coordinator has all participants prepare, and then commit."""


@dataclass(frozen=True, slots=True)
class CommitPlan:
    """How one transaction is committed.

    Attributes:
        path: the way.
        shards: all participants, the coordinator first.
        writers: those of them that have written.
    """

    path: CommitPath
    shards: tuple[str, ...]
    writers: tuple[str, ...]

    @classmethod
    def of(cls, shards: tuple[str, ...], writers: tuple[str, ...]) -> "CommitPlan":
        """The plan for these participants."""
        if not shards:
            path = CommitPath.NO_SHARDS
        elif len(shards) == 1:
            path = CommitPath.ONE_SHARD
        elif not writers:
            path = CommitPath.READ_ONLY
        elif len(writers) == 1:
            path = CommitPath.ONE_WRITER
        else:
            path = CommitPath.TWO_PHASES
        return cls(path, shards, writers)

    @property
    def readers(self) -> tuple[str, ...]:
        """The participants that have not written."""
        return tuple(shard for shard in self.shards if shard not in self.writers)
