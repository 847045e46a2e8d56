"""Sets of dotted paths, as bytes."""

from collections.abc import Iterable
from typing import Final

WHOLE_DOCUMENT: Final = b""
"""The path of the document itself."""

_COMPONENTS_MAX: Final = 50


def first_component(path: bytes) -> bytes:
    """The top-level field that a path begins with."""
    return path.partition(b".")[0]


def overlap(one: Iterable[bytes], other: Iterable[bytes]) -> bool:
    """Whether some path of each set begins with the same top-level field.

    Finer distinctions would be wrong for stages that replace what is not an object on the way to a path.
    """
    return not {first_component(path) for path in one}.isdisjoint(first_component(path) for path in other)


def projectable(path: bytes) -> bytes:
    """The longest beginning of a path that a ``$project`` can include; `WHOLE_DOCUMENT` if there is none.

    A number in the path of a query may mean a position in an array, and a projection only knows field names.
    """
    components = path.split(b".")
    end = 0
    while end < len(components) and _is_plain(components[end], is_top=end == 0):
        end += 1
    return b".".join(components[: min(end, _COMPONENTS_MAX)])


def without_covered(paths: Iterable[bytes]) -> list[bytes]:
    """The paths that are not inside others, in order."""
    kept: list[bytes] = []
    for path in sorted(set(paths), key=lambda path: path.split(b".")):
        if not kept or not path.startswith(kept[-1] + b"."):
            kept.append(path)
    return kept


def _is_plain(component: bytes, *, is_top: bool) -> bool:
    is_name = bool(component) and not component.startswith(b"$") and b"\0" not in component
    return is_name and (is_top or not component.isdigit())
