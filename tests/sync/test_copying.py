"""Ranges of collections that are renamed, made again or resharded at the source, and of an interrupted copy."""

import asyncio
from typing import Any, Final

import bson
import pytest
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

from shardwright.sync import preparing
from shardwright.sync.plan import Collection

OURS: Final = b"1" * 16
OTHER: Final = b"2" * 16
AT: Final = Timestamp(1, 1)


async def done(*_: object, **__: object) -> None:
    """A request without a result."""


def raw(document: dict[str, Any]) -> RawBSONDocument:
    """A document as the driver returns it."""
    return RawBSONDocument(bson.encode(document))


class Documents:
    """A collection of the source, read by its greatest ``_id``."""

    def find(self, *_: object) -> "Documents":
        return self

    sort = limit = find

    async def to_list(self) -> list[RawBSONDocument]:
        return [raw({"_id": "last"})]


class Source:
    """A source of small collections.

    Attributes:
        uuids: the collection that has the name, at one request after the other; the last one stays.
    """

    def __init__(self, *uuids: bytes | None) -> None:
        self.uuids = list(uuids)

    async def uuid(self, _: str) -> bytes | None:
        return self.uuids.pop(0) if len(self.uuids) > 1 else self.uuids[0]

    async def command(self, *_: object) -> dict[str, Any]:
        return {"size": 100, "count": 10}

    def collection(self, _: str) -> Documents:
        return Documents()


def planned(*uuids: bytes | None) -> list[dict[str, Any]]:
    """Plan the copy of a listed collection while its name has these UUIDs."""
    source: Any = Source(*uuids)
    return asyncio.run(preparing._ranges(source, [Collection("db.a", uuid=OURS)], compared=()))


def test_a_range_ends_with_the_present_documents() -> None:
    [found] = planned(OURS)
    assert (found["uuid"], found["high"], found["compares"]) == (OURS, bson.encode({"_id": "last"}), False)


@pytest.mark.parametrize(
    "uuids",
    [(None,), (OTHER,), (OURS, OTHER), (OURS, None)],
    ids=["renamed", "replaced", "replaced while it is read", "renamed while it is read"],
)
def test_a_collection_that_is_renamed_before_its_ranges_are_planned_is_copied(uuids: tuple[bytes | None, ...]) -> None:
    """Its range waits for the event of the rename, and has no bound of another collection."""
    [found] = planned(*uuids)
    assert (found["uuid"], found["low"], found["high"]) == (OURS, None, None)
    assert (found["compares"], found["done"]) == (True, False)
