"""The ``$changeStream`` stage of a pipeline, and the parts of the client's later stages that the router interprets.

Stages apply to the event as the client receives it. A mongod therefore evaluates them on events that the router has
completed and deduplicated. Shards also apply the conditions of leading ``$match`` stages. Most rejected events are then
not transferred, and their documents not looked up. Catalog events are always transferred, because the router needs
them.
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
"""A condition with one of these cannot run on the shards. Their events lack the shard key, and have fields for the
router."""

_IMAGES: Final = (b"fullDocument",)
"""Fields that rule a condition out too if the router adds images; this includes ``fullDocumentBeforeChange``."""

_VARYING: Final = (b"$rand\0", b"$sampleRate\0", b"$function\0")
"""Operators that rule a condition out too: it may be evaluated again, and they give another result each time."""

_CATALOG_EVENT: Final = encode_document({"operationType": {"$in": sorted(CATALOG_EVENTS)}})


@dataclass(frozen=True, slots=True)
class ClientStages:
    """The client's stages of one stream.

    Attributes:
        run_on_shards: whether `for_shards` covers all of them, except for catalog events.
    """

    raw: tuple[bytes, ...]
    for_shards: tuple[bytes, ...]
    run_on_shards: bool

    @classmethod
    def of(cls, stages: Sequence[Stage], *, needs_images: bool) -> "ClientStages":
        """Select the conditions that shards can apply."""
        names = (*_COMPLETED_BY_ROUTER, *_VARYING, *(_IMAGES if needs_images else ()))
        parts = [_without_conditions_on(names, stage) for stage in takewhile(_is_match, stages)]
        for_shards = [part for part in parts if part is not None]
        raw = tuple(stage.raw for stage in stages)
        return cls(raw, tuple(map(_or_of_catalog, for_shards)), for_shards == list(stages))


def _is_match(stage: Stage) -> bool:
    return stage.name == "$match" and stage.span[0] == OBJECT


def _without_conditions_on(names: Sequence[bytes], match: Stage) -> Stage | None:
    """Return a ``$match`` without the conditions that mention any of some names; None if nothing is left."""
    if not any(name in match.raw for name in names):
        return match
    parts = [part for part in conditions(match) or () if not any(name in part.raw for name in names)]
    return match_stage(parts) if parts else None


def _or_of_catalog(match: Stage) -> bytes:
    """Return the raw ``$match`` that also accepts catalog events."""
    query = match.raw[match.span[2] : match.span[3]]
    either = from_elements(element(b"$or", ARRAY, array_of_documents([_CATALOG_EVENT, query])))
    return from_elements(element(b"$match", OBJECT, either))


def applied_to(documents: Sequence[bytes], stages: Sequence[bytes]) -> bytes:
    """Return the raw pipeline that applies stages to given documents."""
    literal = from_elements(element(b"$literal", ARRAY, array_of_documents(list(documents))))
    source = from_elements(element(b"$documents", OBJECT, literal))
    return array_of_documents([source, *stages])


def token_of(event: bytes) -> bytes:
    """Return the raw ``_id`` of a result of the client's stages, empty if it is not a document."""
    span = find(event, b"_id")
    return event[span[2] : span[3]] if span is not None and span[0] == OBJECT else b""


CHANGE_STREAM: Final = "$changeStream"

_RESUME_AFTER: Final = b"resumeAfter"
_START_AFTER: Final = b"startAfter"
_START_AT: Final = b"startAtOperationTime"
_BEFORE_CHANGE: Final = b"fullDocumentBeforeChange"
_STARTS: Final = (_RESUME_AFTER, _START_AFTER, _START_AT)


class Image(StrEnum):
    """The version of a document in events, and the behaviour if it is missing."""

    DEFAULT = "default"
    OFF = "off"
    UPDATE_LOOKUP = "updateLookup"
    WHEN_AVAILABLE = "whenAvailable"
    REQUIRED = "required"


@dataclass(frozen=True, slots=True)
class Specification:
    """The options of a ``$changeStream``. Malformed ones are left for the shards to refuse.

    Attributes:
        resume_after: the token of ``resumeAfter`` or ``startAfter``; None if there is none.
        start_at: ``startAtOperationTime``; None if it is not given.
        has_start: whether a start is given, even a malformed one.
        shows_expanded_events: ``showExpandedEvents``: whether to show events of collections, indexes and options.
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
        """Parse a ``$changeStream`` stage; None if the specification is not a document."""
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
        """Whether events carry documents that the router must look up."""
        return self.full_document != Image.DEFAULT or self.before_change != Image.OFF

    @property
    def start_time(self) -> Timestamp | None:
        """The cluster time from which the client wants events; None if it gives no start."""
        return self.start_at if self.resume_after is None else self.resume_after.time

    def starting_at(self, time: Timestamp) -> bytes:
        """Return the raw stage that starts at a cluster time instead of the client's start."""
        return self._stage({_START_AT.decode(): time})

    def starting_after(self, token: ResumeToken) -> bytes:
        """Return the raw stage that starts after an event, even an event that invalidated the stream."""
        kept = without(self.raw, _STARTS)
        return self._wrapped(append(kept, element(_START_AFTER, OBJECT, token.raw)))

    def starting_where(self, start: ResumeToken) -> bytes:
        """Return the raw stage for the client's start, given as a token.

        To resume after an event, shards start with the event itself, so that the router can verify that it exists.
        Other starts are passed on unchanged for a mongod to check.
        """
        if not self.has_start or self.must_be_found is not None:
            return self.starting_at(start.time)
        return self._wrapped(self.raw)

    @property
    def must_be_found(self) -> ResumeToken | None:
        """The token of the event to resume after, which some shard must have."""
        token = self.resume_after
        is_event = token is not None and not token.is_high_water_mark and not token.is_of_invalidation
        return token if is_event and sum(name in index(self.raw) for name in _STARTS) == 1 else None

    def _stage(self, start: dict[str, Any]) -> bytes:
        return self._wrapped(append(without(self.raw, _STARTS), encode_elements(start)))

    def _wrapped(self, specification: bytes) -> bytes:
        given = find(specification, _BEFORE_CHANGE)
        if self.before_change == Image.OFF and (given is None or given[0] == STRING):
            # Makes events name their pre-images, from which the router can take the shard key.
            named = encode_elements({_BEFORE_CHANGE.decode(): Image.WHEN_AVAILABLE.value})
            specification = append(without(specification, (_BEFORE_CHANGE,)), named)
        return from_elements(element(CHANGE_STREAM.encode(), OBJECT, specification))


def _token(raw: bytes, span: Span | None) -> ResumeToken | None:
    return ResumeToken.parse(raw[span[2] : span[3]]) if span is not None and span[0] == OBJECT else None


def _value(raw: bytes, span: Span | None, kind: int, default: Any) -> Any:  # noqa: ANN401 - as BSON has it
    return default if span is None or span[0] != kind else decode_value(raw, span)
