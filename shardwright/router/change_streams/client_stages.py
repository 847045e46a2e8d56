"""The stages that a client puts after ``$changeStream``, without I/O.

Stages see the event that the client is to see. So they run after the router has completed the event and left out those
that only repeat others, on a mongod that is given the events. Leading ``$match`` stages run on the shards as well, so
that most of what they reject is not even transferred. Changes of the catalog are transferred in any case, because the
router has to know of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from shardwright.router.change_streams.catalog_events import CATALOG_EVENTS
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import (
    ARRAY,
    OBJECT,
    array_of_documents,
    element,
    encode_document,
    find,
    from_elements,
)

_COMPLETED_BY_ROUTER: Final = (b"documentKey", b"preImageId", b"$$ROOT", b"$$CURRENT")
"""What the query of a ``$match`` must not mention to run on the shards: they know no shard key, and their events have a
field that is for the router."""

_CATALOG_EVENT: Final = encode_document({"operationType": {"$in": sorted(CATALOG_EVENTS)}})


@dataclass(frozen=True, slots=True)
class ClientStages:
    """The stages of one stream.

    Attributes:
        raw: all of them, as given.
        for_shards: what the shards run.
        run_on_shards: whether that is all, except for changes of the catalog.
    """

    raw: tuple[bytes, ...]
    for_shards: tuple[bytes, ...]
    run_on_shards: bool

    @classmethod
    def of(cls, stages: Sequence[Stage], *, needs_images: bool) -> "ClientStages":
        """Divide the stages.

        Args:
            stages: those after ``$changeStream``.
            needs_images: the router adds versions of documents to events.
        """
        matches = () if needs_images else _matches(stages)
        return cls(tuple(stage.raw for stage in stages), matches, len(matches) == len(stages))


def _matches(stages: Sequence[Stage]) -> tuple[bytes, ...]:
    """The leading ``$match`` stages, as shards run them."""
    matches: list[bytes] = []
    for stage in stages:
        if stage.name != "$match" or stage.span[0] != OBJECT or any(name in stage.raw for name in _COMPLETED_BY_ROUTER):
            break
        query = stage.raw[stage.span[2] : stage.span[3]]
        either = from_elements(element(b"$or", ARRAY, array_of_documents([_CATALOG_EVENT, query])))
        matches.append(from_elements(element(b"$match", OBJECT, either)))
    return tuple(matches)


def applied_to(documents: Sequence[bytes], stages: Sequence[bytes]) -> bytes:
    """The raw pipeline that applies stages to given documents."""
    literal = from_elements(element(b"$literal", ARRAY, array_of_documents(list(documents))))
    source = from_elements(element(b"$documents", OBJECT, literal))
    return array_of_documents([source, *stages])


def token_of(event: bytes) -> bytes:
    """The raw ``_id`` of an event that the client's stages have made, empty if it is not even a document."""
    span = find(event, b"_id")
    return event[span[2] : span[3]] if span is not None and span[0] == OBJECT else b""
