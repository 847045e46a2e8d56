"""Definitions: a collection has the same indexes and options wherever it is."""

from collections.abc import Mapping


def check_alike(definitions: Mapping[str, Mapping[str, object]]) -> list[str]:
    """Compare each part of each shard's definition with the first shard's."""
    if not definitions:
        return []
    first, *others = definitions
    return [
        f"{part} differ: {first} has {definitions[first].get(part)}, {other} has {definitions[other].get(part)}"
        for other in others
        for part in sorted(definitions[first].keys() | definitions[other].keys())
        if definitions[first].get(part) != definitions[other].get(part)
    ]
