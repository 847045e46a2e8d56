"""An aggregation pipeline, parsed as far as routing needs it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from shardwright.sharding.involved_namespaces import involved_namespaces, may_involve_others
from shardwright.wire.error_codes import ErrorCode
from shardwright.wire.errors import CommandError, missing_field
from shardwright.wire.rawbson import ARRAY, EMPTY_DOCUMENT, OBJECT, Span, array_of_documents, decode_value, spans
from shardwright.wire.request import Request

NOT_ONE_FIELD: Final = 40323


@dataclass(frozen=True, slots=True)
class Stage:
    """One stage ``{<name>: <specification>}``; ``span`` is the position of the specification in ``raw``."""

    name: str
    raw: bytes
    span: Span

    @classmethod
    def parse(cls, raw: bytes) -> "Stage":
        """Parse a stage; raise 40323 if it has not exactly one field."""
        fields = list(spans(raw))
        if len(fields) != 1:
            raise CommandError(NOT_ONE_FIELD, "A pipeline stage specification object must contain exactly one field.")
        return cls(fields[0][0].decode(errors="replace"), raw, fields[0][1])

    @property
    def specification(self) -> Any:  # noqa: ANN401 - each stage has its own
        """Decoded specification of the stage."""
        return decode_value(self.raw, self.span)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """The stages of an ``aggregate``."""

    stages: tuple[Stage, ...]

    @classmethod
    def parse(cls, request: Request) -> "Pipeline":
        """Parse the pipeline of a request.

        Raises 40414 without a pipeline, TypeMismatch, or 40323 for a stage without exactly one field.
        """
        span = request.fields.get(b"pipeline")
        if span is None:
            raise missing_field("aggregate.pipeline")
        if span[0] != ARRAY:
            raise CommandError(ErrorCode.TypeMismatch, "'pipeline' option must be specified as an array")
        return cls(tuple(_stages(request.body, span)))

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the stages."""
        return tuple(stage.name for stage in self.stages)

    @property
    def first(self) -> str:
        """Name of the first stage, empty if there is none."""
        return self.stages[0].name if self.stages else ""

    @property
    def filter(self) -> bytes:
        """Raw filter of a leading ``$match``, empty if there is none; it determines the pipeline's targets."""
        if self.first != "$match":
            return EMPTY_DOCUMENT
        kind, _, start, end = self.stages[0].span
        return self.stages[0].raw[start:end] if kind == OBJECT else EMPTY_DOCUMENT

    def involved_namespaces(self, db: str) -> dict[str, bool]:
        """Map the other collections that stages name, in nested pipelines too, to whether they are written.

        ``db`` is the default database. Raises InvalidBSON, or Overflow for pipelines nested too deep.
        """
        if not any(may_involve_others(stage.raw) for stage in self.stages):
            return {}
        return involved_namespaces(array_of_documents([stage.raw for stage in self.stages]), db)


def _stages(body: bytes, pipeline: Span) -> Iterator[Stage]:
    for _, (kind, _, start, end) in spans(body, pipeline[2]):
        if kind != OBJECT:
            raise CommandError(ErrorCode.TypeMismatch, "Each element of the 'pipeline' array must be an object")
        yield Stage.parse(body[start:end])
