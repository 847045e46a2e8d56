"""The ``$changeStream`` stage of a pipeline, as far as the router has to know it, without I/O."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

from bson.timestamp import Timestamp

from shardwright.router.change_streams.tokens import ResumeToken
from shardwright.router.reads.pipeline import Stage
from shardwright.wire.rawbson import (
    BOOL,
    OBJECT,
    STRING,
    TIMESTAMP,
    Span,
    append,
    decode_value,
    element,
    encode_elements,
    find,
    from_elements,
    index,
    without,
)

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
