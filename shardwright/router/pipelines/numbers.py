"""The arguments of ``$skip``, ``$limit`` and ``$sample``."""

from typing import Any, Final

from shardwright.router.reads.pipeline import Stage

WHOLE_NUMBER_MAX: Final = (1 << 63) - 1


def whole_number(stage: Stage) -> int | None:
    """The argument of ``$skip`` or ``$limit``; None if it is invalid, which is left for mongod to report."""
    return _whole(stage.specification, 0 if stage.name == "$skip" else 1)


def sample_size(stage: Stage) -> int | None:
    """The size of a ``$sample``; None if it is invalid."""
    specification = stage.specification
    if not isinstance(specification, dict) or set(specification) != {"size"}:
        return None
    return _whole(specification["size"], 1)


def _whole(value: Any, least: int) -> int | None:  # noqa: ANN401 - a BSON value can be anything
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value) if least <= value <= WHOLE_NUMBER_MAX else None
