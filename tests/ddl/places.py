"""Places at which changes of collections wait in these tests."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from shardwright.configd.term.term import HANG_IN_CONFIG_COORDINATOR
from shardwright.shardd.context.fail_point_names import HANG_IN_DDL_COORDINATOR
from shardwright.shardd.ddl.coordinator import BEGIN, END
from tests.fail_points import FailPoint, fail_point
from tests.integration.sharded import LOWER
from tests.migration.fault_cluster import CONFIG, FaultCluster

BLOCKED_MS: Final = 1_500
"""Milliseconds that a mongod waits before it executes a command; longer than it takes to kill a process."""


@dataclass(frozen=True)
class Place:
    """A fail point of one process.

    Attributes:
        name: for the names of tests.
        shard: the shard, or the config servers, on whose primary it is.
        process: ``shardd``, ``configd`` or ``mongod``.
        mode: how the fail point is turned on.
    """

    name: str
    shard: str
    process: str
    fail_point: str
    mode: str | dict[str, Any]
    data: dict[str, Any] = field(hash=False)

    @contextmanager
    def blocked(self, cluster: FaultCluster) -> Iterator[FailPoint]:
        """Have whatever gets here wait until the fail point is off, or its process has been killed."""
        process = f"{self.shard}.{cluster.primary_index(self.shard)}.{self.process}"
        with fail_point(cluster.client(process), self.fail_point, self.mode, **self.data) as point:
            yield point


def coordinator_at(operation_type: str, *places: str) -> tuple[Place, ...]:
    """The places of one kind of coordinator, in order; a phase named for the second time is entered again."""
    found = []
    for index, at in enumerate(places):
        earlier = places[:index].count(at)
        mode: str | dict[str, Any] = {"skip": earlier} if earlier else "alwaysOn"
        data = {"operationType": operation_type, "at": at}
        name = f"{at} again" if earlier else at
        found.append(Place(name, LOWER, "shardd", HANG_IN_DDL_COORDINATOR, mode, data))
    return tuple(found)


def config_coordinator_at(coordinator_type: str, *places: str) -> tuple[Place, ...]:
    """The places of one kind of coordinator of the config servers, in order."""
    return tuple(
        Place(
            f"{at} on the config servers",
            CONFIG,
            "configd",
            HANG_IN_CONFIG_COORDINATOR,
            "alwaysOn",
            {"coordinatorType": coordinator_type, "at": at},
        )
        for at in places
    )


def mongod_at(shard: str, command: str) -> Place:
    """A shard's mongod is slow to execute a command, once."""
    data = {
        "failCommands": [command],
        "failInternalCommands": True,
        "blockConnection": True,
        "blockTimeMS": BLOCKED_MS,
    }
    return Place(f"mongod of {shard}", shard, "mongod", "failCommand", {"times": 1}, data)


__all__ = ["BEGIN", "END", "Place", "config_coordinator_at", "coordinator_at", "mongod_at"]
