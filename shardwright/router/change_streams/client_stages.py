"""The stages that a client puts after ``$changeStream``, without I/O.

Stages see the event that the client is to see. So they run after the router has completed the event and left out
those that only repeat others, on a mongod that is given the events. Conditions of leading ``$match`` stages are also
checked on shards, so that most of what they reject is not even transferred, nor its documents looked up. Changes of
the catalog are transferred in any case, because the router has to know of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final

from shardwright.router.change_streams.catalog_events import CATALOG_EVENTS
from shardwright.router.pipelines.match_paths import conditions, match_stage
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

_COMPLETED_BY_ROUTER: Final = (
    b"documentKey",
    b"preImageId",
    b"rawOplogUpdateSpec",
    b"$$ROOT",
    b"$$CURRENT",
    b"$jsonSchema",
)
"""What a condition must not mention to be checked on the shards: they know no shard key, and their events have fields
that are for the router."""

_IMAGES: Final = (b"fullDocument",)
"""What it must not mention either if the router adds versions of documents (``fullDocumentBeforeChange`` included)."""

_VARYING: Final = (b"$rand\0", b"$sampleRate\0", b"$function\0")
"""Nor this, which gives another answer each time: the router may check the condition again."""

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
        names = (*_COMPLETED_BY_ROUTER, *_VARYING, *(_IMAGES if needs_images else ()))
        parts = [_without_conditions_on(names, stage) for stage in takewhile(_is_match, stages)]
        for_shards = [part for part in parts if part is not None]
        raw = tuple(stage.raw for stage in stages)
        return cls(raw, tuple(map(_or_of_catalog, for_shards)), for_shards == list(stages))


def _is_match(stage: Stage) -> bool:
    return stage.name == "$match" and stage.span[0] == OBJECT


def _without_conditions_on(names: Sequence[bytes], match: Stage) -> Stage | None:
    """The same stage, or one without the conditions that mention any of some names; None if nothing is left."""
    if not any(name in match.raw for name in names):
        return match
    parts = [part for part in conditions(match) or () if not any(name in part.raw for name in names)]
    return match_stage(parts) if parts else None


def _or_of_catalog(match: Stage) -> bytes:
    """The raw ``$match`` that also accepts changes of the catalog."""
    query = match.raw[match.span[2] : match.span[3]]
    either = from_elements(element(b"$or", ARRAY, array_of_documents([_CATALOG_EVENT, query])))
    return from_elements(element(b"$match", OBJECT, either))


def applied_to(documents: Sequence[bytes], stages: Sequence[bytes]) -> bytes:
    """The raw pipeline that applies stages to given documents."""
    literal = from_elements(element(b"$literal", ARRAY, array_of_documents(list(documents))))
    source = from_elements(element(b"$documents", OBJECT, literal))
    return array_of_documents([source, *stages])


def token_of(event: bytes) -> bytes:
    """The raw ``_id`` of an event that the client's stages have made, empty if it is not even a document."""
    span = find(event, b"_id")
    return event[span[2] : span[3]] if span is not None and span[0] == OBJECT else b""
