"""How often clients have begun to log in, and succeeded, by mechanism, for the section ``security`` of serverStatus.

As in MongoDB (``AuthCounter``) an attempt counts as ``authenticate`` in any case; one that a client has begun within
its hello also counts as ``speculativeAuthenticate``, and one of a part of the cluster as ``clusterAuthenticate``. Pure.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from bson.int64 import Int64

_ANY: Final = "authenticate"
_SPECULATIVE: Final = "speculativeAuthenticate"
_OF_CLUSTER: Final = "clusterAuthenticate"


@dataclass(slots=True)
class _Count:
    received: int = 0
    successful: int = 0


_Counts = dict[str, _Count]
"""Of one mechanism, by kind."""


class LogInAttempt:
    """A log-in that has begun, and has been counted.

    Args:
        counts: those of its mechanism.
        is_speculative: it was begun within a hello.
    """

    __slots__ = ("_counts", "_kinds")

    def __init__(self, counts: _Counts, *, is_speculative: bool) -> None:
        self._counts = counts
        self._kinds: list[str] = []
        self._count_as(_ANY)
        if is_speculative:
            self._count_as(_SPECULATIVE)

    def is_of_cluster(self) -> None:
        """It has turned out to be one of a part of the cluster."""
        self._count_as(_OF_CLUSTER)

    def succeed(self) -> None:
        """It has succeeded."""
        for kind in self._kinds:
            self._counts[kind].successful += 1

    def _count_as(self, kind: str) -> None:
        self._kinds.append(kind)
        self._counts[kind].received += 1


class LogInCounts:
    """The counts of this process.

    Args:
        mechanisms: by which clients can log in.

    Attributes:
        mechanisms_asked: how many hellos have asked for the mechanisms of a user.
    """

    def __init__(self, mechanisms: Iterable[str]) -> None:
        self.mechanisms_asked = 0
        self._by_mechanism = {name: _no_counts() for name in sorted(mechanisms)}

    def begin(self, mechanism: str, *, is_speculative: bool) -> LogInAttempt:
        """Count an attempt; one by a mechanism that there is not counts nowhere."""
        return LogInAttempt(self._by_mechanism.get(mechanism, _no_counts()), is_speculative=is_speculative)

    def document(self) -> dict[str, Any]:
        """The subsection ``authentication``."""
        return {
            "saslSupportedMechsReceived": Int64(self.mechanisms_asked),
            "mechanisms": {
                name: {
                    kind: {"received": Int64(count.received), "successful": Int64(count.successful)}
                    for kind, count in counts.items()
                }
                for name, counts in self._by_mechanism.items()
            },
        }


def _no_counts() -> _Counts:
    return {kind: _Count() for kind in (_SPECULATIVE, _OF_CLUSTER, _ANY)}
