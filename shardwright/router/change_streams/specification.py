"""The ``$changeStream`` stage of a pipeline, and the client's stages after it, as far as the router has to know them.

Stages see the event that the client is to see. So they run after the router has completed the event and left out
those that only repeat others, on a mongod that is given the events. Conditions of leading ``$match`` stages are also
checked on shards, so that most of what they reject is not even transferred, nor its documents looked up. Changes of
the catalog are transferred in any case, because the router has to know of them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import takewhile
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.change_streams.catalog_events import CATALOG_EVENTS
from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.sharding.pipelines.field_paths import conditions, match_stage
from shardwright.sharding.pipelines.pipeline import Stage
from shardwright.wire.rawbson import (
    ARRAY,
    BOOL,
    OBJECT,
    STRING,
    TIMESTAMP,
    Span,
    append,
    array_of_documents,
    decode_value,
    element,
    encode_document,
    encode_elements,
    find,
    from_elements,
    index,
    without,
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


CHANGE_STREAM: Final = "$changeStream"

_RESUME_AFTER: Final = b"resumeAfter"
_START_AFTER: Final = b"startAfter"
_START_AT: Final = b"startAtOperationTime"
_BEFORE_CHANGE: Final = b"fullDocumentBeforeChange"
_STARTS: Final = (_RESUME_AFTER, _START_AFTER, _START_AT)


class Image(StrEnum):
    """Which version of a document events carry, and what happens if it is missing."""

    DEFAULT = "default"
    OFF = "off"
    UPDATE_LOOKUP = "updateLookup"
    WHEN_AVAILABLE = "whenAvailable"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Specification:
    """What a ``$changeStream`` asks for. What is malformed is left for the shards to refuse.

    Attributes:
        raw: the specification.
        resume_after: the token to resume after, by ``resumeAfter`` or ``startAfter``; None if there is none.
        start_at: ``startAtOperationTime``, None if it is not given.
        has_start: whether a start is given, even a malformed one.
        full_document: which version of updated documents events carry.
        before_change: which version from before the change events carry.
        shows_expanded_events: whether events about collections, indexes and options are wanted, too.
    """

    raw: bytes
    resume_after: ResumeToken | None
    start_at: Timestamp | None
    has_start: bool
    full_document: str
    before_change: str
    shows_expanded_events: bool

    @classmethod
    def parse(cls, stage: Stage) -> "Specification | None":
        """The specification in a ``$changeStream`` stage; None if it is not a document."""
        kind, _, start, end = stage.span
        if kind != OBJECT:
            return None
        raw = stage.raw[start:end]
        fields = index(raw)
        return cls(
            raw,
            _token(raw, fields.get(_RESUME_AFTER)) or _token(raw, fields.get(_START_AFTER)),
            _value(raw, fields.get(_START_AT), TIMESTAMP, None),
            any(name in fields for name in _STARTS),
            _value(raw, fields.get(b"fullDocument"), STRING, Image.DEFAULT),
            _value(raw, fields.get(_BEFORE_CHANGE), STRING, Image.OFF),
            _value(raw, fields.get(b"showExpandedEvents"), BOOL, False),
        )

    @property
    def needs_images(self) -> bool:
        """Whether events carry documents that the router has to look up."""
        return self.full_document != Image.DEFAULT or self.before_change != Image.OFF

    @property
    def start_time(self) -> Timestamp | None:
        """The cluster time from which the client wants events; None if it does not say."""
        return self.start_at if self.resume_after is None else self.resume_after.time

    def starting_at(self, time: Timestamp) -> bytes:
        """The raw stage that starts at a cluster time, instead of where the client asked for."""
        return self._stage({_START_AT.decode(): time})

    def starting_after(self, token: ResumeToken) -> bytes:
        """The raw stage that starts after the event with a token, even if that invalidated the stream."""
        kept = without(self.raw, _STARTS)
        return self._wrapped(append(kept, element(_START_AFTER, OBJECT, token.raw)))

    def starting_where(self, start: ResumeToken) -> bytes:
        """The raw stage for a stream that starts at a token, for which the client has asked in some form.

        After an event, shards begin with the event itself, so that the router sees whether it is there. A mongod
        checks what else clients may have given.
        """
        if not self.has_start or self.must_be_found is not None:
            return self.starting_at(start.time)
        return self._wrapped(self.raw)

    @property
    def must_be_found(self) -> ResumeToken | None:
        """The token of the event that some shard must have, after which the stream resumes."""
        token = self.resume_after
        is_event = token is not None and not token.is_high_water_mark and not token.is_of_invalidation
        return token if is_event and sum(name in index(self.raw) for name in _STARTS) == 1 else None

    def _stage(self, start: dict[str, Any]) -> bytes:
        return self._wrapped(append(without(self.raw, _STARTS), encode_elements(start)))

    def _wrapped(self, specification: bytes) -> bytes:
        given = find(specification, _BEFORE_CHANGE)
        if self.before_change == Image.OFF and (given is None or given[0] == STRING):
            # Events then name their pre-images, from which the router may learn the shard key.
            named = encode_elements({_BEFORE_CHANGE.decode(): Image.WHEN_AVAILABLE.value})
            specification = append(without(specification, (_BEFORE_CHANGE,)), named)
        return from_elements(element(CHANGE_STREAM.encode(), OBJECT, specification))


def _token(raw: bytes, span: Span | None) -> ResumeToken | None:
    return ResumeToken.parse(raw[span[2] : span[3]]) if span is not None and span[0] == OBJECT else None


def _value(raw: bytes, span: Span | None, kind: int, default: Any) -> Any:  # noqa: ANN401 - as BSON has it
    return default if span is None or span[0] != kind else decode_value(raw, span)
