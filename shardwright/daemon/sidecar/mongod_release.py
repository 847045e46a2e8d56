"""The releases of mongod that a daemon supports, judged by the wire versions in their hello. Pure functions.

Shardwright uses commands between servers, which MongoDB may change from one release to the next without notice.
docs/upgrade.md lists the known differences of each release; only `TRIED` is tested.
"""

from collections.abc import Mapping
from typing import Any, Final

TRIED: Final = "6.0"
"""The release that every test runs on."""

_WIRE_VERSION_TRIED: Final = 17
_RELEASES: Final[Mapping[int, str]] = {
    13: "5.0",
    14: "5.1",
    15: "5.2",
    16: "5.3",
    _WIRE_VERSION_TRIED: TRIED,
    18: "6.1",
    19: "6.2",
    20: "6.3",
    21: "7.0",
    22: "7.1",
    23: "7.2",
    24: "7.3",
    25: "8.0",
}
"""Releases by their ``maxWireVersion``."""


def release_refusal(hello: Mapping[str, Any]) -> str | None:
    """Return the reason why a daemon cannot work with its mongod, and the remedy; None if it may be able to."""
    oldest, newest = _wire_versions(hello)
    if newest < _WIRE_VERSION_TRIED:
        return f"the mongod is of {_release(newest)}, and {TRIED} is needed; upgrade the mongod"
    if oldest > _WIRE_VERSION_TRIED:
        return (
            f"the mongod is of {_release(newest)} and no longer speaks as {TRIED} does (minWireVersion {oldest}); "
            f"install a mongod {TRIED}"
        )
    return None


def release_warning(hello: Mapping[str, Any]) -> str | None:
    """Return a warning about a mongod of an untested release; None for a tested one."""
    _, newest = _wire_versions(hello)
    if newest <= _WIRE_VERSION_TRIED:
        return None
    return (
        f"the mongod is of {_release(newest)}, and Shardwright was tried with {TRIED} only: read docs/upgrade.md "
        "before you use it for data that matter"
    )


def _release(wire_version: int) -> str:
    release = _RELEASES.get(wire_version)
    return f"MongoDB {release}" if release else f"an unknown release of MongoDB (maxWireVersion {wire_version})"


def _wire_versions(hello: Mapping[str, Any]) -> tuple[int, int]:
    return hello.get("minWireVersion", 0), hello.get("maxWireVersion", _WIRE_VERSION_TRIED)
