"""Where tests can make the coordinators of the config servers wait: a fail point as that of shards' coordinators."""

from collections.abc import Mapping
from typing import Any, Final

from shardwright.daemon.fail_points import FailPoints

HANG_IN_CONFIG_COORDINATOR: Final = "hangInConfigCoordinator"
"""A coordinator of the ``coordinatorType`` in the data waits at the place ``at``: a state or phase, when that has been
persisted; ``end``, before its document is removed. Without one of them, at any."""

END: Final = "end"
"""Besides its states, the place where a coordinator can be made to wait."""

FAIL_POINT_NAMES: Final = frozenset({HANG_IN_CONFIG_COORDINATOR})


async def hang_at(fail_points: FailPoints, coordinator_type: str, place: str) -> None:
    """Wait while the fail point says so for coordinators of this type at this place."""

    def concerns_this(data: Mapping[str, Any]) -> bool:
        here = {"coordinatorType": coordinator_type, "at": place}
        return all(data.get(name, value) == value for name, value in here.items())

    await fail_points.hang_while(HANG_IN_CONFIG_COORDINATOR, concerns_this)
